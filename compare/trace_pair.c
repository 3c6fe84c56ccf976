#include "compare/trace_pair.h"

#include <stdlib.h>
#include <string.h>

fd_code fd_trace_pair_open(const fd_trace *ref, const fd_trace *cand, fd_trace_pair *out, fd_error *err) {
    *out = (fd_trace_pair){.ref = ref, .cand = cand};
    return fd_align_traces(ref, cand, &out->align, err);
}

void fd_trace_pair_close(fd_trace_pair *pair) {
    fd_alignment_free(&pair->align);
    free(pair->ref_data);
    free(pair->cand_data);
    *pair = (fd_trace_pair){0};
}

const fd_node_pair *fd_trace_pair_find(const fd_trace_pair *pair, const char *name) {
    for (int32_t i = 0; i < pair->align.n_pair; i++)
        if (strcmp(fd_trace_node_at(pair->ref, pair->align.pairs[i].ref)->name, name) == 0)
            return &pair->align.pairs[i];
    return NULL;
}

static uint32_t memory_type(const fd_trace_node *node) {
    return node->dtype == FD_F64 ? FD_F64 : FD_F32;
}

/* *present is false when the trace does not hold this position. */
static fd_code read_side(const fd_trace *trace, int32_t node_at, int32_t pos, void **data, size_t *capacity,
                         bool *present, fd_error *err) {
    const fd_trace_node *node = fd_trace_node_at(trace, node_at);
    *present = false;
    if (!node->has_data) return FD_OK;
    bool wide = memory_type(node) == FD_F64;
    size_t bytes = (size_t)fd_trace_elements(node, pos) * (wide ? sizeof(double) : sizeof(float));
    if (bytes > *capacity) {
        void *grown = realloc(*data, bytes);
        if (!grown) return fd_fail(err, FD_ERR_MEMORY, "%s: %zu bytes for a row: out of memory", node->name, bytes);
        *data = grown;
        *capacity = bytes;
    }
    fd_error why = {0};
    fd_code code = fd_trace_read(trace, node_at, pos, wide ? NULL : *data, wide ? *data : NULL, &why);
    if (code == FD_ERR_INCOMPLETE) return FD_OK;
    if (code != FD_OK) *err = why;
    *present = code == FD_OK;
    return code;
}

static const fd_fingerprint *comparable_fingerprint(const fd_trace_pair *pair, const fd_node_pair *node, int32_t pos,
                                                    const fd_fingerprint **other) {
    const fd_trace_node *a = fd_trace_node_at(pair->ref, node->ref), *b = fd_trace_node_at(pair->cand, node->cand);
    if (!pair->align.same_contract || a->dtype != b->dtype || (a->dtype != FD_F32 && a->dtype != FD_F64)) return NULL;
    const fd_fingerprint *mine = fd_trace_fingerprint(pair->ref, node->ref, pos);
    *other = fd_trace_fingerprint(pair->cand, node->cand, pos);
    return mine && *other ? mine : NULL;
}

static fd_code contradiction(const fd_trace_pair *pair, const fd_trace_node *node, int32_t pos,
                             const fd_fingerprint *recorded, fd_error *err) {
    int64_t n = fd_trace_elements(node, pos);
    fd_fingerprint actual =
        node->dtype == FD_F64 ? fd_fingerprint_f64(pair->ref_data, n) : fd_fingerprint_f32(pair->ref_data, n);
    bool ref_right = actual.lo == recorded->lo && actual.hi == recorded->hi;
    return fd_fail(err, FD_ERR_INPUT, "%s: %s at position %d: the elements do not have the recorded fingerprint",
                   fd_trace_path(ref_right ? pair->cand : pair->ref), node->name, pos);
}

fd_code fd_trace_pair_values(fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look *look, fd_error *err) {
    const fd_trace_node *a = fd_trace_node_at(pair->ref, node->ref), *b = fd_trace_node_at(pair->cand, node->cand);
    bool has_ref, has_cand;
    look->has_diff = false;
    FD_TRY(read_side(pair->ref, node->ref, pos, &pair->ref_data, &pair->ref_bytes, &has_ref, err));
    if (!has_ref) return FD_OK;
    FD_TRY(read_side(pair->cand, node->cand, pos, &pair->cand_data, &pair->cand_bytes, &has_cand, err));
    if (!has_cand) return FD_OK;
    fd_tensor_view ref = {pair->ref_data, memory_type(a)}, cand = {pair->cand_data, memory_type(b)};
    fd_diff_tensors(ref, cand, fd_trace_elements(a, pos), fd_coarser(a->dtype, b->dtype), &look->diff);
    look->has_diff = true;
    if (look->by_fingerprint && look->result == FD_LOOK_DIFFERS && look->diff.n_differ == 0)
        return contradiction(pair, a, pos, fd_trace_fingerprint(pair->ref, node->ref, pos), err);
    return FD_OK;
}

fd_code fd_trace_pair_look(fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look *out, fd_error *err) {
    memset(out, 0, sizeof *out);
    if (!node->same_shape) {
        out->result = FD_LOOK_DIFFERS;
        return FD_OK;
    }
    const fd_fingerprint *b, *a = comparable_fingerprint(pair, node, pos, &b);
    if (a) {
        out->by_fingerprint = true;
        out->result = a->lo == b->lo && a->hi == b->hi ? FD_LOOK_SAME : FD_LOOK_DIFFERS;
        return FD_OK;
    }
    FD_TRY(fd_trace_pair_values(pair, node, pos, out, err));
    if (!out->has_diff)
        out->result = FD_LOOK_UNKNOWN;
    else
        out->result = out->diff.n_differ ? FD_LOOK_DIFFERS : FD_LOOK_SAME;
    return FD_OK;
}

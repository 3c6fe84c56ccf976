#include "compare/diff/trace_pair.h"

#include <stdlib.h>
#include <string.h>

#include "dumpers/store/place.h"

fd_code fd_trace_pair_open(const fd_trace *ref, const fd_trace *cand, fd_trace_pair *out, fd_error *err) {
    *out = (fd_trace_pair){.ref = ref, .cand = cand, .memory = SIZE_MAX};
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

static const fd_fingerprint *comparable_fingerprint(const fd_trace_pair *pair, const fd_node_pair *node, int32_t pos,
                                                    const fd_fingerprint **other) {
    const fd_trace_node *a = fd_trace_node_at(pair->ref, node->ref), *b = fd_trace_node_at(pair->cand, node->cand);
    if (!pair->align.same_contract || a->dtype != b->dtype || (a->dtype != FD_F32 && a->dtype != FD_F64)) return NULL;
    const fd_fingerprint *mine = fd_trace_fingerprint(pair->ref, node->ref, pos);
    *other = fd_trace_fingerprint(pair->cand, node->cand, pos);
    return mine && *other ? mine : NULL;
}

bool fd_trace_pair_prints(const fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look_result *out) {
    const fd_fingerprint *b, *a = comparable_fingerprint(pair, node, pos, &b);
    if (a) *out = a->lo == b->lo && a->hi == b->hi ? FD_LOOK_SAME : FD_LOOK_DIFFERS;
    return a != NULL;
}

/* The fingerprint of elements that come in parts, each but the last of an even number. */
static void print_add(fd_fingerprint *print, uint32_t dtype, const void *data, int64_t at, int64_t n) {
    const float *x = data;
    const double *wide = data;
    for (int64_t i = 0; dtype == FD_F64 && i < n; i++)
        fd_fingerprint_add(print, (uint64_t)(at + i), fd_canonical64(wide[i]));
    for (int64_t i = 0; dtype == FD_F32 && i < n; i += 2) {
        uint64_t high = i + 1 < n ? fd_canonical32(x[i + 1]) : 0;
        fd_fingerprint_add(print, (uint64_t)(at + i) / 2, fd_canonical32(x[i]) | high << 32);
    }
}

/* Elements that agree, of fingerprints that do not: which file contradicts itself? */
static fd_code contradiction(fd_trace_pair *pair, const fd_node_pair *np, int32_t pos, fd_error *err) {
    const fd_trace_node *node = fd_trace_node_at(pair->ref, np->ref);
    const fd_fingerprint *recorded = fd_trace_fingerprint(pair->ref, np->ref, pos);
    int64_t n = fd_trace_elements(node, pos), most = FD_PAIR_BLOCK / 8;
    fd_fingerprint actual = {0, 0}, expected = recorded ? *recorded : actual;
    for (int64_t at = 0; at < n; at += most) {
        int64_t m = n - at < most ? n - at : most;
        FD_TRY(fd_trace_read_part(pair->ref, np->ref, pos, at, m, pair->ref_data, err));
        print_add(&actual, node->dtype, pair->ref_data, at, m);
    }
    actual = fd_fingerprint_end(actual, (uint64_t)n);
    bool ref_right = actual.lo == expected.lo && actual.hi == expected.hi;
    return fd_fail(err, FD_ERR_INPUT, "%s: %s at position %d: the elements do not have the recorded fingerprint",
                   fd_trace_path(ref_right ? pair->cand : pair->ref), node->name, pos);
}

fd_code fd_trace_pair_values(fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look *look, fd_error *err) {
    const fd_trace_node *a = fd_trace_node_at(pair->ref, node->ref), *b = fd_trace_node_at(pair->cand, node->cand);
    look->has_diff = false;
    if (!fd_trace_holds(pair->ref, node->ref, pos) || !fd_trace_holds(pair->cand, node->cand, pos)) return FD_OK;
    if (!pair->ref_data) pair->ref_data = malloc(FD_PAIR_BLOCK);
    if (!pair->cand_data) pair->cand_data = malloc(FD_PAIR_BLOCK);
    if (!pair->ref_data || !pair->cand_data) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", a->name);
    fd_tensor_view ref = {pair->ref_data, a->dtype}, cand = {pair->cand_data, b->dtype};
    int64_t n = fd_trace_elements(a, pos), most = FD_PAIR_BLOCK / 8;
    fd_diff_start(fd_coarser(a->dtype, b->dtype), &look->diff);
    for (int64_t at = 0; at < n; at += most) {
        int64_t m = n - at < most ? n - at : most;
        FD_TRY(fd_trace_read_part(pair->ref, node->ref, pos, at, m, pair->ref_data, err));
        FD_TRY(fd_trace_read_part(pair->cand, node->cand, pos, at, m, pair->cand_data, err));
        fd_diff_add(ref, cand, m, &look->diff);
    }
    look->has_diff = true;
    if (look->by_fingerprint && look->result == FD_LOOK_DIFFERS && look->diff.n_differ == 0)
        return contradiction(pair, node, pos, err);
    return FD_OK;
}

fd_code fd_trace_pair_look(fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look *out, fd_error *err) {
    memset(out, 0, sizeof *out);
    if (!node->same_shape) {
        out->result = FD_LOOK_DIFFERS;
        return FD_OK;
    }
    out->by_fingerprint = fd_trace_pair_prints(pair, node, pos, &out->result);
    if (out->by_fingerprint) return FD_OK;
    FD_TRY(fd_trace_pair_values(pair, node, pos, out, err));
    if (!out->has_diff)
        out->result = FD_LOOK_UNKNOWN;
    else
        out->result = out->diff.n_differ ? FD_LOOK_DIFFERS : FD_LOOK_SAME;
    return FD_OK;
}

#include "compare/diff/comparator.h"

#include <stdlib.h>

#include "dumpers/store/place.h"

/* Bytes of a side that are compared at once: two of them fit a second-level cache next to each other. */
enum { BLOCK_BYTES = 1 << 18, BLOCK_ELEMENTS = BLOCK_BYTES / 8 };

void fd_comparator_free(fd_comparator *comparator) {
    free(comparator->block[0]);
    free(comparator->block[1]);
    *comparator = (fd_comparator){0};
}

fd_tensor_side fd_side_of_trace(const fd_trace *trace, int32_t node, int32_t pos, bool fingerprints) {
    uint32_t dtype = fd_trace_node_at(trace, node)->dtype;
    bool hashed =
        fingerprints && (dtype == FD_F32 || dtype == FD_F64); /* 16-bit elements: what was computed is hashed */
    return (fd_tensor_side){.dtype = dtype,
                            .fingerprint = hashed ? fd_trace_fingerprint(trace, node, pos) : NULL,
                            .trace = trace,
                            .node = node,
                            .pos = pos};
}

static bool equal(fd_fingerprint a, fd_fingerprint b) {
    return a.lo == b.lo && a.hi == b.hi;
}

bool fd_compare_fingerprints(const fd_tensor_side *ref, const fd_tensor_side *cand, fd_look *look) {
    look->by_fingerprint = ref->fingerprint && cand->fingerprint && ref->dtype == cand->dtype;
    if (look->by_fingerprint)
        look->result = equal(*ref->fingerprint, *cand->fingerprint) ? FD_LOOK_SAME : FD_LOOK_DIFFERS;
    return look->by_fingerprint;
}

/* ---- elements ---- */

static int64_t elements_of(const fd_tensor_side *side) {
    if (side->trace) return fd_trace_elements(fd_trace_node_at(side->trace, side->node), side->pos);
    return fd_node_elements(side->live->node, side->live->pos0 + side->row + 1);
}

static bool has_elements(const fd_tensor_side *side) {
    return side->trace ? fd_trace_holds(side->trace, side->node, side->pos) : side->live->data != NULL;
}

static bool reserve(fd_comparator *c, int i, size_t bytes) {
    if (bytes <= c->bytes[i]) return true;
    void *grown = realloc(c->block[i], bytes);
    if (!grown) return false;
    c->block[i] = grown;
    c->bytes[i] = bytes;
    return true;
}

/* Makes room for a side, and for a live row with padding copies the row without it. */
static bool begin_elements(fd_comparator *c, int i, const fd_tensor_side *side, int64_t n) {
    if (side->trace) return reserve(c, i, BLOCK_BYTES);
    if (n == side->live->row_stride) return true;
    if (!reserve(c, i, (size_t)n * sizeof(double))) return false;
    fd_observation_copy(side->live, side->row, c->block[i]);
    return true;
}

/* Elements [at, at + n) of a side. */
static fd_code part_of(const fd_comparator *c, int i, const fd_tensor_side *side, int64_t at, int64_t n,
                       fd_tensor_view *out, fd_error *err) {
    *out = (fd_tensor_view){c->block[i], side->dtype};
    if (side->trace) return fd_trace_read_part(side->trace, side->node, side->pos, at, n, c->block[i], err);
    const fd_observation *o = side->live;
    int64_t width = fd_dtype_get(o->dtype)->block_bytes;
    bool padded = elements_of(side) != o->row_stride;
    out->data = padded ? (const char *)c->block[i] + at * width
                       : (const char *)o->data + (side->row * o->row_stride + at) * width;
    return FD_OK;
}

/* Adds elements [at, at + n) to a fingerprint; n is even but for the last part. */
static void hash_part(fd_fingerprint *f, fd_tensor_view part, int64_t at, int64_t n) {
    const float *x = part.data;
    const double *wide = part.data;
    for (int64_t i = 0; part.dtype == FD_F64 && i < n; i++)
        fd_fingerprint_add(f, (uint64_t)(at + i), fd_canonical64(wide[i]));
    for (int64_t i = 0; part.dtype == FD_F32 && i < n; i += 2) {
        uint64_t high = i + 1 < n ? fd_canonical32(x[i + 1]) : 0;
        fd_fingerprint_add(f, (uint64_t)(at + i) / 2, fd_canonical32(x[i]) | high << 32);
    }
}

/* Elements that agree, with fingerprints that do not: names the trace that contradicts itself. */
static fd_code contradiction(fd_comparator *c, const fd_tensor_side *ref, const fd_tensor_side *cand, fd_error *err) {
    int64_t n = elements_of(ref);
    fd_fingerprint actual = {0, 0};
    for (int64_t at = 0; at < n; at += BLOCK_ELEMENTS) {
        int64_t m = n - at < BLOCK_ELEMENTS ? n - at : BLOCK_ELEMENTS;
        fd_tensor_view part;
        FD_TRY(part_of(c, 0, ref, at, m, &part, err));
        hash_part(&actual, part, at, m);
    }
    actual = fd_fingerprint_end(actual, (uint64_t)n);
    const fd_tensor_side *wrong = !cand->trace || (ref->trace && !equal(actual, *ref->fingerprint)) ? ref : cand;
    return fd_fail(err, FD_ERR_INPUT, "%s: %s at position %d: the elements do not have the recorded fingerprint",
                   fd_trace_path(wrong->trace), fd_trace_node_at(wrong->trace, wrong->node)->name, wrong->pos);
}

fd_code fd_compare_elements(fd_comparator *c, const fd_tensor_side *ref, const fd_tensor_side *cand, fd_look *look,
                            fd_error *err) {
    look->has_diff = false;
    if (!has_elements(ref) || !has_elements(cand)) return FD_OK;
    int64_t n = elements_of(ref);
    if (!begin_elements(c, 0, ref, n) || !begin_elements(c, 1, cand, n))
        return fd_fail(err, FD_ERR_MEMORY, "a tensor of %lld elements: out of memory", (long long)n);
    fd_diff_start(fd_coarser(ref->dtype, cand->dtype), &look->diff);
    for (int64_t at = 0; at < n; at += BLOCK_ELEMENTS) {
        int64_t m = n - at < BLOCK_ELEMENTS ? n - at : BLOCK_ELEMENTS;
        fd_tensor_view a, b;
        FD_TRY(part_of(c, 0, ref, at, m, &a, err));
        FD_TRY(part_of(c, 1, cand, at, m, &b, err));
        fd_diff_add(a, b, m, &look->diff);
    }
    look->has_diff = true;
    if (look->by_fingerprint && look->result == FD_LOOK_DIFFERS && look->diff.n_differ == 0)
        return contradiction(c, ref, cand, err);
    return FD_OK;
}

fd_code fd_compare_tensors(fd_comparator *c, const fd_tensor_side *ref, const fd_tensor_side *cand, fd_look *look,
                           fd_error *err) {
    look->has_diff = false;
    if (fd_compare_fingerprints(ref, cand, look)) return FD_OK;
    FD_TRY(fd_compare_elements(c, ref, cand, look, err));
    look->result = !look->has_diff ? FD_LOOK_UNKNOWN : look->diff.n_differ ? FD_LOOK_DIFFERS : FD_LOOK_SAME;
    return FD_OK;
}

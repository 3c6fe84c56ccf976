#include "compare/dump/narrow.h"

#include <stdlib.h>

#include "compare/bounds/numerics_class.h"
#include "compare/dump/last_row.h"

/* By chance one value of 2^13 is one of binary16. */
enum { FEWEST_VALUES = 64, F16_DIGITS = 11, BF16_DIGITS = 8 };

uint32_t fd_narrow_type(const float *x, int64_t n) {
    bool f16 = true, bf16 = true;
    int64_t n_said = 0;
    for (int64_t i = 0; i < n && (f16 || bf16); i++) {
        f16 &= !(fd_rounding_error(x[i], F16_DIGITS, 0x1p-24) > 0);
        bf16 &= !(fd_rounding_error(x[i], BF16_DIGITS, 0) > 0);
        n_said += x[i] > 0 || x[i] < 0;
    }
    return n_said < FEWEST_VALUES ? FD_F32 : bf16 ? FD_BF16 : f16 ? FD_F16 : FD_F32;
}

/* Results of binary32 arithmetic, in a class that has no other; kernels of products and attention may end in 16 bits all the same. */
static bool should_be_wide(const fd_node *node) {
    return node->op == FD_OP_ADD || node->op == FD_OP_RMS_NORM || node->op == FD_OP_LAYER_NORM ||
           node->op == FD_OP_SILU_MUL;
}

/* What a product alone reads may have been recorded as its rounded factor. */
static bool may_be_factor(const fd_node *node, const fd_numerics_class *c, uint32_t dtype) {
    return node->op != FD_OP_ADD && c->u_in >= fd_dtype_roundoff(dtype);
}

static fd_code look_at(const fd_trace *trace, int32_t at, float **rows, uint32_t *dtype, fd_error *err) {
    const int32_t last = fd_trace_n_pos(trace) - 1;
    const int64_t n = fd_trace_elements(fd_trace_node_at(trace, at), last);
    float *grown = realloc(*rows, sizeof *grown * (size_t)n);
    if (!grown) return fd_fail(err, FD_ERR_MEMORY, "values of 16 bits: out of memory");
    *rows = grown;
    bool there;
    FD_TRY(fd_read_last_row(trace, at, grown, &there, err));
    *dtype = fd_narrow_type(grown, there ? n : 0);
    return FD_OK;
}

fd_code fd_find_narrow(const fd_attribution_options *options, bool saved_so, fd_narrow *out, fd_error *err) {
    const fd_trace *trace = options->cand;
    const fd_numerics_class *c = options->numerics;
    float *rows = NULL;
    const int32_t last = options->graph->n_node - 1;
    uint32_t last_type = FD_F32;
    int32_t n_wide = 0;
    fd_code code = FD_OK;
    *out = (fd_narrow){.node = -1};
    if (c->exact || c->u_out > 0x1p-24 || c->u_shown > 0) return FD_OK;
    for (int32_t i = 0; i < options->graph->n_node && code == FD_OK; i++) {
        const fd_node *node = &options->graph->nodes[i];
        const int32_t at = fd_trace_find(trace, node->name);
        uint32_t dtype = FD_F32;
        const bool judged = should_be_wide(node) || node->layer < 0; /* logits show that others are wide */
        if (at < 0 || !fd_trace_has_data(trace, node->name) || !judged) continue;
        const uint32_t stored = fd_trace_node_at(trace, at)->dtype;
        if ((stored != FD_F32 && !(saved_so && stored != FD_F64)) || (options->ignored && options->ignored[i]))
            continue;
        code = look_at(trace, at, &rows, &dtype, err);
        n_wide += code == FD_OK && dtype == FD_F32;
        if (code == FD_OK && i == last) last_type = dtype;
        if (code != FD_OK || dtype == FD_F32 || !should_be_wide(node) || may_be_factor(node, c, dtype)) continue;
        if (out->n++ == 0) out->node = i, out->dtype = dtype;
    }
    free(rows);
    if (n_wide == 0 && !saved_so) out->n = 0;
    /* sums may end in 16 bits; where nothing is wide, no other tensor says that these did */
    if (n_wide == 0 && saved_so && out->n == 0 && last_type != FD_F32)
        *out = (fd_narrow){.n = 1, .node = last, .dtype = last_type};
    return code;
}

/* The bound of a variant: what a right engine that had this fault would be allowed, not what the op as it should be
 * is. A misread weight gives values, and roundings, of quite another size. */
#include <math.h>
#include <stdlib.h>

#include "compare/evaluate/kept_types.h"
#include "compare/evaluate/variant.h"
#include "compare/evaluate/workbench.h"

static double *widen(const float *x, int64_t n) {
    double *wide = malloc(sizeof *wide * (size_t)(n > 0 ? n : 1));
    for (int64_t i = 0; wide && i < n; i++) wide[i] = (double)x[i];
    return wide;
}

static uint32_t stored_as(const fd_explain_request *r, int32_t node) {
    return r->stored ? r->stored(r->user, node) : (uint32_t)FD_F64;
}

/* How far what the trace holds may be from what the candidate multiplied: a 16-bit trace of wider tensors. */
static double *storage_error(const fd_explain_request *r, int32_t node, const double *x, int64_t n) {
    uint32_t type = stored_as(r, node);
    double u = type == FD_F16 || type == FD_BF16 ? fd_dtype_roundoff(type) : 0;
    double tiny = u > 0 ? fd_dtype_tiny(type) : 0, *e = malloc(sizeof *e * (size_t)(n > 0 ? n : 1));
    for (int64_t i = 0; e && i < n; i++) e[i] = isfinite(x[i]) ? u * fabs(x[i]) + tiny / 2 : 0;
    return e;
}

static int64_t input_elements(const fd_op_args *args, int32_t id) {
    const fd_node *input = &args->graph->nodes[id];
    int64_t rows = input->op == FD_OP_KV_WRITE ? args->n_kv : args->n_pos;
    return rows * fd_node_row_stride(input, args->n_kv);
}

typedef struct wide_args {
    double *in[FD_MAX_INPUTS], *e[FD_MAX_INPUTS], *tables, *out, *candidate; /* owned */
} wide_args;

static bool widen_all(const fd_explain_request *r, const fd_op_args *args, const float *output, wide_args *w) {
    const fd_node *node = args->node;
    int64_t stride = fd_node_row_stride(node, args->n_kv);
    int64_t rows = node->op == FD_OP_KV_WRITE ? args->n_kv : args->n_pos, n_table = 0;
    bool done = true;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        if (node->input[k] < 0) continue;
        int64_t n = input_elements(args, node->input[k]);
        w->in[k] = widen(args->in[k], n);
        w->e[k] = w->in[k] ? storage_error(r, node->input[k], w->in[k], n) : NULL;
        done &= w->e[k] != NULL;
    }
    if (args->rope_cos) {
        n_table = (int64_t)args->n_kv * node->rope.n_rot;
        w->tables = widen(args->rope_cos, n_table); /* sines follow the cosines */
        done &= w->tables != NULL;
    }
    w->out = widen(args->out, rows * stride);
    if (output) w->candidate = widen(output, args->n_pos * stride);
    return done && w->out && (w->candidate || !output);
}

fd_code fd_variant_bound(const fd_explain_request *request, const fd_op_args *args, const float *output, double **out,
                         fd_error *err) {
    int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    wide_args w = {0};
    double *tau = malloc(sizeof *tau * (size_t)n);
    fd_code code = FD_OK;
    if (!tau || !widen_all(request, args, output, &w))
        code = fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for the bounds of %s", args->node->name);
    if (code == FD_OK) {
        fd_op_args wide = *args;
        wide.out = w.out;
        if (w.tables) {
            wide.rope_cos = w.tables;
            wide.rope_sin = w.tables + (int64_t)args->n_kv * (args->node->rope.n_rot / 2);
        }
        fd_bound_args bound = {.op = &wide,
                               .candidate = w.candidate,
                               .stored = stored_as(request, args->node->id),
                               .numerics = request->numerics,
                               .kv_type = fd_explain_kv_type(request, args->node),
                               .n_output = request->n_output,
                               .memo = fd_bench_has_own_weights(args) ? NULL : request->memo};
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            wide.in[k] = w.in[k];
            bound.in_error[k] = w.e[k];
        }
        code = fd_bound(&bound, tau, err);
    }
    for (int k = 0; k < FD_MAX_INPUTS; k++) free(w.in[k]), free(w.e[k]);
    free(w.tables);
    free(w.out);
    free(w.candidate);
    if (code != FD_OK) {
        free(tau);
        tau = NULL;
    }
    *out = tau;
    return code;
}

#include "compare/diagnose/overflow_sizes.h"

#include <math.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "model/gguf/quant.h"

static int32_t own_position(const fd_overflow_look *l, int32_t row) {
    return l->request->args.pos0 + row;
}

/* Rows that an op reads of an input: its own, or all of a cache up to its own. */
static const float *rows_read(const fd_overflow_look *l, int32_t row, int slot, int64_t *n) {
    const fd_node *from = &l->request->args.graph->nodes[l->node->input[slot]];
    int64_t stride = fd_node_row_stride(from, l->request->args.n_kv);
    bool cache = from->op == FD_OP_KV_WRITE;
    *n = cache ? (own_position(l, row) + 1) * stride : stride;
    return l->in[slot] + (cache ? 0 : row * stride);
}

static double larger(double most, double x) {
    return fabs(x) > most ? fabs(x) : most;
}

double fd_overflow_of_input(const fd_overflow_look *l, int32_t row, int slot) {
    int64_t n;
    const float *x = rows_read(l, row, slot, &n);
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(x[i])) most = larger(most, (double)x[i]);
    return most;
}

/* llama.cpp keeps it beside the block's scale, in binary16. */
static double of_block_sums(const fd_overflow_look *l, int32_t row, int slot) {
    int64_t n;
    const float *x = rows_read(l, row, slot, &n);
    double most = 0;
    for (int64_t b = 0; b + 32 <= n; b += 32) {
        double sum = 0;
        for (int64_t i = b; i < b + 32; i++) sum += (double)x[i];
        most = larger(most, sum);
    }
    return most;
}

/* What comes out; scores of keys that a row does not see are -Inf by right. */
double fd_overflow_of_result(const fd_overflow_look *l, int32_t row, int slot) {
    int64_t n = fd_node_row_stride(l->node, l->request->args.n_kv);
    const float *y = l->right + row * n;
    double most = 0;
    (void)slot;
    for (int64_t i = 0; i < n; i++) {
        if (l->node->over_kv && (i % l->request->args.n_kv > own_position(l, row) || !isfinite(y[i]))) continue;
        most = larger(most, (double)y[i]);
    }
    return most;
}

static double of_unscaled(const fd_overflow_look *l, int32_t row, int slot) {
    return fd_overflow_of_result(l, row, slot) / (double)l->node->scale;
}

static double of_squares(const fd_overflow_look *l, int32_t row, int slot) {
    double most = fd_overflow_of_input(l, row, slot);
    return most * most;
}

/* Of the norm of each head, where it has heads. */
static double sum_of_squares(const fd_overflow_look *l, int32_t row, bool least) {
    int64_t n, size = l->node->shape[l->node->n_dim - 1];
    const float *x = rows_read(l, row, 0, &n);
    double found = least ? INFINITY : 0;
    for (int64_t at = 0; at + size <= n; at += size) {
        double sum = 0;
        for (int64_t i = at; i < at + size; i++) sum += (double)x[i] * (double)x[i];
        if (least ? sum < found : sum > found) found = sum;
    }
    return found;
}

static double of_sum_of_squares(const fd_overflow_look *l, int32_t row, int slot) {
    (void)slot;
    return sum_of_squares(l, row, false);
}

/* 1 / mean, as without an eps. */
static double of_inverse(const fd_overflow_look *l, int32_t row, int slot) {
    (void)slot;
    return (double)l->node->shape[l->node->n_dim - 1] / sum_of_squares(l, row, true);
}

/* e to the largest element. Of an activation of x: GELU's tanh is one of 2u, u ≈ 0.8·(x + 0.045x³). */
static double of_exponential(const fd_overflow_look *l, int32_t row, int slot) {
    int64_t n;
    const float *x = rows_read(l, row, slot, &n);
    double most = -INFINITY;
    bool gelu = l->node->op == FD_OP_GELU || l->node->op == FD_OP_GELU_MUL;
    for (int64_t i = 0; i < n; i++) {
        bool seen = !l->node->over_kv || i % l->request->args.n_kv <= own_position(l, row);
        if (seen && (double)x[i] > most) most = (double)x[i];
    }
    return exp(gelu ? 1.5957691216 * (most + 0.044715 * most * most * most) : most);
}

/* Products summed from the front. */
static double of_partial_sums(const fd_overflow_look *l, int32_t row, int slot) {
    const fd_weight *w = &l->request->args.graph->weights[l->node->weight[0]];
    int64_t n, row_bytes = fd_dtype_row_bytes(w->dtype, w->n_col);
    const float *x = rows_read(l, row, slot, &n);
    float *values = malloc(sizeof *values * (size_t)w->n_col);
    double most = 0;
    for (int64_t o = 0; o < w->n_row && values; o++) {
        double sum = 0;
        fd_dequantize_row(w->dtype, (const char *)w->data + o * row_bytes, values, w->n_col);
        for (int64_t i = 0; i < w->n_col; i++) most = larger(most, sum += (double)values[i] * (double)x[i]);
    }
    free(values);
    return most;
}

/* ---- causes, in the order in which an op comes to them ---- */

static bool is_any(const fd_overflow_look *l) {
    return l->node->op != FD_OP_ATTN_SOFTMAX && l->node->op != FD_OP_TOP_K;
}
static bool is_product(const fd_overflow_look *l) {
    return l->node->op == FD_OP_MATMUL;
}
static bool is_other(const fd_overflow_look *l) {
    return is_any(l) && !is_product(l);
}
static bool is_quantised(const fd_overflow_look *l) {
    bool product = l->node->op == FD_OP_MATMUL || l->node->op == FD_OP_EXPERT_MATMUL;
    return product && fd_dtype_get(l->request->args.graph->weights[l->node->weight[0]].dtype)->block_elements > 1;
}
static bool is_scaled(const fd_overflow_look *l) {
    return l->node->op == FD_OP_ATTN_SCORES && l->node->scale > 0 && l->node->scale < 1 && !(l->node->softcap > 0);
}
static bool is_norm(const fd_overflow_look *l) {
    return fd_node_is_norm(l->node);
}
static bool is_exponential(const fd_overflow_look *l) {
    static const fd_op ops[] = {FD_OP_ATTN_SOFTMAX, FD_OP_SOFTMAX, FD_OP_SILU_MUL, FD_OP_SILU,
                                FD_OP_SIGMOID,      FD_OP_GELU,    FD_OP_GELU_MUL};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (l->node->op == ops[i]) return true;
    return false;
}

const fd_overflow_cause fd_overflow_causes[] = {
    {FD_OVERFLOW_INPUT, is_product, fd_overflow_of_input, 0, 1.01, FD_MARKS_WHOLE_ROW},
    {FD_OVERFLOW_INPUT, is_other, fd_overflow_of_input, 0, 1.01, FD_MARKS_ANY},
    {FD_OVERFLOW_INPUT, is_other, fd_overflow_of_input, 1, 1.01, FD_MARKS_ANY},
    {FD_OVERFLOW_BLOCK_SUM, is_quantised, of_block_sums, 0, 1.1, FD_MARKS_WHOLE_ROW},
    {FD_OVERFLOW_UNSCALED, is_scaled, of_unscaled, FD_NO_SLOT, 1.01, FD_MARKS_ANY},
    {FD_OVERFLOW_SQUARE, is_norm, of_squares, 0, 1.01, FD_MARKS_ANY},
    {FD_OVERFLOW_SQUARES, is_norm, of_sum_of_squares, 0, 1.1, FD_MARKS_ANY},
    {FD_OVERFLOW_EXPONENTIAL, is_exponential, of_exponential, 0, 1.1, FD_MARKS_NAN},
    {FD_OVERFLOW_RESULT, is_any, fd_overflow_of_result, FD_NO_SLOT, 1.01, FD_MARKS_OWN},
    {FD_OVERFLOW_PARTIAL_SUM, is_product, of_partial_sums, 0, 2, FD_MARKS_ANY},
};
const int32_t fd_n_overflow_cause = sizeof fd_overflow_causes / sizeof *fd_overflow_causes;

const fd_overflow_cause fd_overflow_norm_of_zero = {
    FD_OVERFLOW_NORM_OF_ZERO, is_norm, of_inverse, 0, 1.01, FD_MARKS_ANY};

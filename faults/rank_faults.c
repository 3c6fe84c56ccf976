/* Bugs of tensor-parallel engines, as the whole tensor shows them, with two ranks where no other number is named: what one rank
 * leaves out, takes twice or has from elsewhere. Other numbers of ranks are guesses (compare/explain/guess_inputs.c). */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Row r of the product from input row x(r), rows [first, end) of the weight alone; plus n_bias biases. */
static void product_rows(const fd_op_args *args, int64_t first, int64_t end, int stale, int n_bias) {
    const fd_weight *w = args->weight[0];
    float *bias = args->weight[1] && n_bias ? fd_fault_row(args->weight[1], 0) : NULL;
    for (int64_t o = first; o < end; o++) {
        float *row = fd_fault_row(w, o);
        for (int32_t r = 0; r < args->n_pos; r++) {
            int32_t from = r >= stale && !args->row_by_row ? r - stale : r;
            float *y = (float *)args->out + r * w->n_row + o;
            *y = row ? fd_fault_dot(row, (const float *)args->in[0] + from * w->n_col, w->n_col) : NAN;
            for (int i = 0; bias && i < n_bias; i++) *y = *y + bias[o];
        }
        free(row);
    }
    free(bias);
}

/* The second rank's outputs were read before this position's were there. */
static void second_rank_stale(const fd_op_args *args) {
    int64_t n = args->weight[0]->n_row;
    product_rows(args, 0, n / 2, 0, 1);
    product_rows(args, n / 2, n, 1, 1);
}

/* Each of four ranks adds the bias to its partial sum. */
FD_OVERRIDE(bias_of_four, product_rows(args, 0, args->weight[0]->n_row, 0, 4))

/* y = times · W x over the first half of the inputs + W x over the second: the ranks' partial sums. */
static void first_partial(const fd_op_args *args, float times) {
    const fd_weight *w = args->weight[0];
    float *bias = args->weight[1] ? fd_fault_row(args->weight[1], 0) : NULL;
    float *x = malloc(sizeof *x * (size_t)w->n_col);
    for (int64_t o = 0; o < w->n_row; o++) {
        float *row = fd_fault_row(w, o);
        for (int32_t r = 0; r < args->n_pos; r++) {
            const float *in = (const float *)args->in[0] + r * w->n_col;
            float *y = (float *)args->out + r * w->n_row + o;
            for (int64_t k = 0; x && k < w->n_col; k++) x[k] = k < w->n_col / 2 ? times * in[k] : in[k];
            *y = row && x ? fd_fault_dot(row, x, w->n_col) : NAN;
            if (bias) *y = *y + bias[o];
        }
        free(row);
    }
    free(x);
    free(bias);
}
FD_OVERRIDE(partial_missing, first_partial(args, 0.0f))
FD_OVERRIDE(partial_twice, first_partial(args, 2.0f))

/* The second rank's part of the vocabulary begins one row late; the row after the last is zero. */
static void second_rank_shifted(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    for (int64_t o = 0; o < w->n_row; o++) {
        int64_t from = o < w->n_row / 2 ? o : o + 1;
        float *row = from < w->n_row ? fd_fault_row(w, from) : NULL;
        for (int32_t r = 0; r < args->n_pos; r++)
            ((float *)args->out)[r * w->n_row + o] =
                row               ? fd_fault_dot(row, (const float *)args->in[0] + r * w->n_col, w->n_col)
                : from < w->n_row ? NAN
                                  : 0.0f;
        free(row);
    }
}

/* Two ranks have each other's experts. */
static void experts_exchanged(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    int64_t n = w->n_col, k = args->node->shape[0], n_out = args->node->shape[1], n_expert = w->n_row / n_out;
    bool own_rows = fd_fault_input(args, 0)->n_dim == 2;
    for (int64_t row = 0; row < w->n_row; row++) {
        float *values = fd_fault_row(w, row);
        float *bias = args->weight[1] ? fd_fault_row(args->weight[1], row / n_out) : NULL;
        for (int64_t item = 0; item < args->n_pos * k; item++) {
            int64_t id = fd_expert_of((double)((const float *)args->in[1])[item], n_expert);
            float *y = (float *)args->out + item * n_out + row % n_out;
            if (id < 0) *y = NAN;
            if (id < 0 || (id + n_expert / 2) % n_expert != row / n_out) continue;
            *y = values ? fd_fault_dot(values, (const float *)args->in[0] + (own_rows ? item : item / k) * n, n) : NAN;
            if (bias) *y = *y + bias[row % n_out];
        }
        free(values);
        free(bias);
    }
}

FD_APPLIES(has_bias, fd_fault_weight(graph, node, 1) != NULL)
FD_APPLIES(halves, fd_fault_weight(graph, node, 0)->n_col % 2 == 0)
FD_APPLIES(several_experts, fd_fault_weight(graph, node, 0)->n_row / node->shape[1] > 2)

#define RANKS(name, located, op_, summary) .info = {name, "ranks", summary, located, false}, .op = op_, .nodes = located

static const fd_fault rows[] = {
    {RANKS("tp_rank_stale", "attn_q", FD_OP_MATMUL, "the second of two ranks has its outputs of the position before"),
     .override = second_rank_stale},
    {RANKS("tp_partial_missing", "attn_proj", FD_OP_MATMUL, "the first of two ranks' partial sum is left out"),
     .applies = halves, .override = partial_missing},
    {RANKS("tp_partial_twice", "attn_proj", FD_OP_MATMUL, "the first of two ranks' partial sum is added twice"),
     .applies = halves, .override = partial_twice},
    {RANKS("tp_bias_per_rank", "attn_proj", FD_OP_MATMUL,
           "the bias is added before the all-reduce: once for each of four ranks"),
     .applies = has_bias, .override = bias_of_four},
    {.info = {"tp_vocabulary_shifted", "ranks", "the second of two ranks' part of the vocabulary begins one row late",
              "logits logits_raw", true},
     .op = FD_OP_MATMUL,
     .nodes = "logits logits_raw",
     .override = second_rank_shifted},
    {RANKS("tp_experts_exchanged", "ffn_moe_gate", FD_OP_EXPERT_MATMUL, "two ranks have each other's experts"),
     .applies = several_experts, .override = experts_exchanged},
};
const fd_fault_family fd_rank_faults = FD_FAULT_FAMILY(rows);

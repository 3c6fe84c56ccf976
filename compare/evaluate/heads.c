/* Ops of which every head has a number, with other numbers: ALiBi's slopes, the sinks of a softmax. */
#include <math.h>
#include <stdlib.h>

#include "compare/evaluate/workbench.h"
#include "compare/products/run_op.h"
#include "model/weight_rows.h"
#include "numerics/contract.h"

/* The numbers as they should be, [n_head]. */
static void right_numbers(const fd_op_args *args, int32_t n_head, float *to) {
    if (args->node->op == FD_OP_ATTN_ALIBI)
        for (int32_t i = 0; i < n_head; i++) to[i] = (float)fd_alibi_slope(args->node->max_bias, n_head, i);
    else
        fd_weight_row(args->weight[0], 0, to);
}

static void other_numbers(const fd_hypothesis *h, const float *right, int32_t n_head, float *to) {
    for (int32_t i = 0; i < n_head; i++)
        to[i] = h->guess == FD_GUESS_MAPPED       ? right[h->keys >> 4 * i & 15]
                : h->which == FD_HEAD_NUMBERS_ARE ? (float)h->value
                                                  : (float)h->value * right[i];
}

/* Scores as they are up to the row's own position. */
static void bias_with(const fd_op_args *args, const float *slopes, int32_t n_head) {
    for (int64_t item = 0; item < (int64_t)args->n_pos * n_head; item++) {
        const int64_t own = args->pos0 + item / n_head;
        const float *score = (const float *)args->in[0] + item * args->n_kv;
        float *y = (float *)args->out + item * args->n_kv;
        for (int64_t t = 0; t < args->n_kv; t++)
            y[t] = t > own ? 0 : fmaf(slopes[item % n_head], (float)(t - own), score[t]);
    }
}

bool fd_bench_changes_head_numbers(const fd_hypothesis *h) {
    return h->guess == FD_GUESS_HEAD_NUMBERS || (h->guess == FD_GUESS_MAPPED && h->which == FD_MAPPED_NUMBERS);
}

void fd_bench_run_head_numbers(const fd_evaluation *ev, const fd_op_args *args) {
    const int32_t n_head = args->node->shape[0];
    float *right = malloc(2 * sizeof *right * (size_t)n_head), *other = right ? right + n_head : NULL;
    fd_op_args with = *args;
    const fd_weight numbers = {.dtype = FD_F32, .n_row = 1, .n_col = n_head, .data = other};
    if (right) {
        right_numbers(args, n_head, right);
        other_numbers(&ev->h, right, n_head, other);
    }
    with.weight[0] = right && args->node->op == FD_OP_ATTN_SOFTMAX ? &numbers : args->weight[0];
    if (right && args->node->op == FD_OP_ATTN_ALIBI)
        bias_with(args, other, n_head);
    else
        fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, &with);
    free(right);
}

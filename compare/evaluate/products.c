/* Products that were computed for another hypothesis, or for the same one in another class, are taken from there. */
#include "compare/products/memo.h"

#include <stdlib.h>
#include <string.h>

#include "compare/evaluate/workbench.h"
#include "compare/products/run_op.h"

bool fd_bench_has_own_weights(const fd_op_args *args) {
    bool own = false;
    for (int k = 0; k < FD_MAX_WEIGHTS; k++) {
        const fd_weight *w = args->weight[k], *its = w ? &args->graph->weights[args->node->weight[k]] : NULL;
        own |=
            w && !(w->data == its->data && w->dtype == its->dtype && w->n_row == its->n_row && w->n_col == its->n_col);
    }
    return own;
}

/* All that decides what args->weight[0] is made to be (run.c, widen_weight). */
static int32_t rounding_of(const fd_explain_request *r, const fd_op_args *args, const fd_weight *own) {
    const bool as_it_is =
        args->weight[0] == own || !r->numerics || !fd_dot_repeats_factors(r->numerics, args->node, own);
    return as_it_is ? 0 : 1 + (int32_t)fd_dot_type_of(r->numerics, args->node, own, 0);
}

void fd_bench_multiply(const fd_explain_request *r, const fd_op_args *args, const fd_weight *own) {
    const fd_weight *bias = args->weight[1];
    const fd_memo_key key = {.kind = FD_MEMO_EXACT,
                             .weight = own->data,
                             .bias = bias ? bias->data : NULL,
                             .rounding = rounding_of(r, args, own),
                             .n_row = own->n_row,
                             .n = own->n_col};
    fd_op_args given = *args;
    given.weight[0] = own;
    const bool known = r->memo && !fd_bench_has_own_weights(&given);
    const size_t width = sizeof(float) * (size_t)key.n, out_width = sizeof(float) * (size_t)key.n_row;
    char *rows = known ? malloc((size_t)args->n_pos * (width + out_width + sizeof(int32_t)) + 1) : NULL;
    if (!rows) {
        fd_call_op(r->op, FD_NUMERICS_EXACT, args);
        return;
    }
    char *made = rows + (size_t)args->n_pos * width, *out = args->out;
    int32_t *at = (int32_t *)(void *)(made + (size_t)args->n_pos * out_width), n = 0;
    for (int32_t p = 0; p < args->n_pos; p++) {
        const char *x = (const char *)args->in[0] + (size_t)p * width;
        const void *result = fd_product_memo_find(r->memo, &key, x);
        if (result) memcpy(out + (size_t)p * out_width, result, out_width);
        if (result) continue;
        memcpy(rows + (size_t)n * width, x, width);
        at[n++] = p;
    }
    fd_op_args fresh = *args;
    fresh.in[0] = rows;
    fresh.out = made;
    fresh.n_pos = n;
    if (n > 0) fd_call_op(r->op, FD_NUMERICS_EXACT, &fresh);
    for (int32_t i = 0; i < n; i++) {
        const char *result = made + (size_t)i * out_width;
        memcpy(out + (size_t)at[i] * out_width, result, out_width);
        fd_product_memo_keep(r->memo, &key, rows + (size_t)i * width, result);
    }
    free(rows);
}

/* RMSNorm by one number where there is one of each: a mean square for all rows of a forward call, as a mean without an axis gives, or the
 * first row's; a weight for all elements. */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>

#include "numerics/contract.h"

/* The rows of a call, [start, end) of those that are there. */
static int32_t end_of_call(const fd_op_args *args, int32_t row) {
    const int32_t start = fd_fault_batch_start(args, row);
    int32_t end = row + 1;
    while (end < args->n_pos && fd_fault_batch_start(args, end) == start) end++;
    return end;
}

static void by_rows(const fd_op_args *args, bool first_alone) {
    const int64_t width = fd_node_width(args->node), n = args->weight[0]->n_col;
    float *w = fd_fault_row(args->weight[0], 0);
    if (!w) {
        fd_fault_nan(args, width);
        return;
    }
    for (int32_t row = 0, end; row < args->n_pos; row = end) {
        end = end_of_call(args, row);
        const float *x = (const float *)args->in[0] + row * width;
        const int64_t all = (end - row) * width, counted = first_alone ? n : all;
        const float r = 1.0f / sqrtf(fd_dot(x, x, counted) / (float)counted + args->node->eps);
        float *y = (float *)args->out + row * width;
        for (int64_t i = 0; i < all; i++) y[i] = x[i] * r * w[i % n];
    }
    free(w);
}
FD_OVERRIDE(over_all_rows, by_rows(args, false))
FD_OVERRIDE(by_first_row, by_rows(args, true))

/* A weight of one element, or read with a stride of 0. */
static void by_first_weight(const fd_op_args *args) {
    const int64_t n = args->weight[0]->n_col, n_row = args->n_pos * fd_node_width(args->node) / n;
    float *w = fd_fault_row(args->weight[0], 0);
    for (int64_t row = 0; row < n_row; row++) {
        const float *x = (const float *)args->in[0] + row * n;
        const float r = 1.0f / sqrtf(fd_dot(x, x, n) / (float)n + args->node->eps);
        for (int64_t i = 0; i < n; i++) ((float *)args->out)[row * n + i] = w ? x[i] * r * w[0] : NAN;
    }
    free(w);
}

/* A matrix of weights has a row for each head. */
FD_APPLIES(of_one_weight, fd_fault_weight(graph, node, 0) && fd_fault_weight(graph, node, 0)->n_row == 1)

#define NORM(name, summary)                                                                                            \
    .info = {name, "norm", summary, "attn_norm", false, .whole_batch = true}, .op = FD_OP_RMS_NORM,                    \
    .applies = of_one_weight

static const fd_fault rows[] = {
    {NORM("norm_over_rows", "RMSNorm takes one mean square over all rows of a forward call, not one for each"),
     .override = over_all_rows},
    {NORM("norm_by_first_row", "RMSNorm divides every row of a forward call by the first one's root mean square"),
     .override = by_first_row},
    {.info = {"norm_weight_first", "norm", "RMSNorm multiplies every element by its weight's first one", "attn_norm",
              false},
     .op = FD_OP_RMS_NORM,
     .applies = of_one_weight,
     .override = by_first_weight},
};
const fd_fault_family fd_norm_rows_faults = FD_FAULT_FAMILY(rows);

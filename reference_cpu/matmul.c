/* MATMUL: y[o] = W[o]·x, plus bias[o] where the model has one. An item is an output row o, for all positions.
 *
 * Contract: W is dequantised to binary32; the dot has 64 partial sums; the bias is one addition afterwards. */
#include "reference_cpu/real.h"
#include "model/weight_rows.h"

void REF(matmul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    int64_t n = weight->n_col;
    float w[FD_PIECE];

    for (int64_t o = begin; o < end; o++)
        for (int64_t row = 0; row < args->n_pos; row++) {
            const real *x = (const real *)args->in[0] + row * n;
            real_sum s = {0};
            for (int64_t at = 0; at < n; at += FD_PIECE) {
                fd_weight_piece(weight, o, at, w);
                real_add_products(&s, w, x + at, fd_piece_length(n, at));
            }
            real dot = real_total(&s);
            ((real *)args->out)[row * weight->n_row + o] = bias ? dot + (real)fd_weight_element(bias, o) : dot;
        }
}

/* LAYER_NORM: y = (c·r)·w + b with c = x − Σx / n and r = 1 / sqrt(Σc² / n + eps), over the last dimension. An item
 * is a row: a position's, or a head's of a position, which may have a row of w and b of its own.
 *
 * Contract: both sums by the 64 partial sums, the second as fma(c, c, acc); c is rounded before it is squared, c·r
 * before w multiplies it, the product before b is added. */
#include "reference_cpu/real.h"
#include "model/weight_rows.h"

static real centred_squares(const real *x, real mean, int64_t n) {
    real_sum s = {0};
    for (int64_t k = 0; k < n; k++) {
        real c = x[k] - mean;
        s.partial[k % FD_PARTIALS] = real_fma(c, c, s.partial[k % FD_PARTIALS]);
    }
    return real_total(&s);
}

void REF(layer_norm)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    int64_t n = args->node->shape[args->node->n_dim - 1];
    float w[FD_PIECE], b[FD_PIECE];

    for (int64_t row = begin; row < end; row++) {
        const real *x = (const real *)args->in[0] + row * n;
        real *y = (real *)args->out + row * n;
        real mean = real_total_of(x, n) / (real)n;
        real r = 1 / real_sqrt(centred_squares(x, mean, n) / (real)n + (real)args->node->eps);
        for (int64_t at = 0; at < n; at += FD_PIECE) {
            int64_t count = fd_piece_length(n, at);
            for (int64_t i = 0; i < count; i++) y[at + i] = (x[at + i] - mean) * r;
            if (weight) fd_weight_piece(weight, row % weight->n_row, at, w);
            for (int64_t i = 0; weight && i < count; i++) y[at + i] = y[at + i] * (real)w[i];
            if (bias) fd_weight_piece(bias, row % bias->n_row, at, b);
            for (int64_t i = 0; bias && i < count; i++) y[at + i] = y[at + i] + (real)b[i];
        }
    }
}

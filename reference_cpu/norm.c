/* RMS_NORM: y = (x·r)·w with r = 1 / sqrt(Σx² / n + eps), over the last dimension. An item is a row: a position's, or
 * a head's of a position, which may have a row of w of its own. L2_NORM: y = x·r with r = 1 / sqrt(Σx² + eps).
 *
 * Contract: Σx² by the 64 partial sums, fma(x, x, acc); eps is inside the root; x·r is rounded before w multiplies
 * it. */
#include "reference_cpu/real.h"
#include "model/weight_rows.h"

void REF(rms_norm)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0];
    int64_t n = weight->n_col;
    float w[FD_PIECE];

    for (int64_t row = begin; row < end; row++) {
        const real *x = (const real *)args->in[0] + row * n;
        real *y = (real *)args->out + row * n;
        real mean = real_dot(x, x, n) / (real)n;
        real r = 1 / real_sqrt(mean + (real)args->node->eps);
        for (int64_t at = 0; at < n; at += FD_PIECE) {
            fd_weight_piece(weight, row % weight->n_row, at, w);
            for (int64_t i = 0; i < fd_piece_length(n, at); i++) y[at + i] = (x[at + i] * r) * (real)w[i];
        }
    }
}

void REF(l2_norm)(const fd_op_args *args, int64_t begin, int64_t end) {
    int64_t n = args->node->shape[args->node->n_dim - 1];
    for (int64_t row = begin; row < end; row++) {
        const real *x = (const real *)args->in[0] + row * n;
        real *y = (real *)args->out + row * n;
        real r = 1 / real_sqrt(real_dot(x, x, n) + (real)args->node->eps);
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * r;
    }
}

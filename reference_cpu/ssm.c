/* CONV, SSM_SCAN: state-space layers, over the rows of a cache from position 0 on. An item is a channel, for all
 * positions. */
#include "reference_cpu/real.h"
#include "model/weight_rows.h"

/* y = Σ_j w[j]·x(p − (taps − 1) + j), oldest first, acc = fma(w, x, acc) from +0, then the bias. Before position 0 there
 * is nothing. */
void REF(conv)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    const int64_t n = fd_node_width(args->node), n_tap = weight->n_col;
    const real *x = args->in[0];
    for (int64_t c = begin; c < end; c++)
        for (int64_t row = 0; row < args->n_pos; row++) {
            const int64_t oldest = args->pos0 + row - (n_tap - 1);
            real acc = 0;
            for (int64_t j = 0; j < n_tap; j++)
                if (oldest + j >= 0)
                    acc = real_fma((real)fd_weight_row_element(weight, c, j), x[(oldest + j) * n + c], acc);
            ((real *)args->out)[row * n + c] = bias ? acc + (real)fd_weight_element(bias, c) : acc;
        }
}

static real each_of(const fd_weight *w, int64_t head, int64_t i) {
    return (real)fd_weight_row_element(w, head, w->n_col > 1 ? i : 0);
}

/* h[s] = fma(h[s], e^(A·dt), (x·dt)·B[s]); y = Σ_s C[s]·h[s], acc = fma(C, h, acc) from +0, then fma(D, x, y). A row of
 * the cache: dt of each head, x of each channel, B of each group. */
void REF(ssm_scan)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *c_node = fd_ref_input(args, 1);
    const int64_t n_head = args->node->shape[0], n_dim = args->node->shape[1];
    const int64_t n_group = c_node->shape[0], n_state = c_node->shape[1];
    const int64_t width = n_head + n_head * n_dim + n_group * n_state, n_channel = n_head * n_dim;
    const fd_weight *a = args->weight[0], *d = args->weight[1];

    for (int64_t channel = begin; channel < end; channel++) {
        const int64_t head = channel / n_dim, group = head / (n_head / n_group);
        const real skip = (real)(d->n_row == 1 ? fd_weight_element(d, head) : fd_weight_row_element(d, head, 0));
        real h[FD_MAX_STATE] = {0}, decay[FD_MAX_STATE];
        for (int64_t s = 0; s < n_state; s++) decay[s] = each_of(a, head, s);
        for (int64_t t = 0; t < args->pos0 + args->n_pos; t++) {
            const real *row = (const real *)args->in[0] + t * width;
            const real dt = row[head], x = row[n_head + channel], *b = row + n_head + n_channel + group * n_state;
            for (int64_t s = 0; s < n_state; s++) h[s] = real_fma(h[s], real_exp(decay[s] * dt), x * dt * b[s]);
            if (t < args->pos0) continue;
            const real *c = (const real *)args->in[1] + ((t - args->pos0) * n_group + group) * n_state;
            real y = 0;
            for (int64_t s = 0; s < n_state; s++) y = real_fma(c[s], h[s], y);
            ((real *)args->out)[(t - args->pos0) * n_channel + channel] = real_fma(skip, x, y);
        }
    }
}

/* SOFTMAX, TOP_K, EXPERT_WEIGHTS, EXPERT_MATMUL, EXPERT_SUM: a mixture of experts. Chosen experts are numbered by rank,
 * 0 the one with the largest element of the router's row; their ids are reals. An id that names no expert makes NaN. */
#include "reference_cpu/real.h"
#include "model/weight_rows.h"

/* e^(x − m) / Σ e^(x − m) over n elements, `out` may be `x`. */
static void softmax_row(const real *x, real *out, int64_t n) {
    real max = (real)-INFINITY;
    for (int64_t i = 0; i < n; i++) max = real_max(max, x[i]);
    for (int64_t i = 0; i < n; i++) out[i] = real_exp(x[i] - max);
    real sum = real_total_of(out, n);
    for (int64_t i = 0; i < n; i++) out[i] = out[i] / sum;
}

/* An item is a row. */
void REF(softmax)(const fd_op_args *args, int64_t begin, int64_t end) {
    int64_t n = args->node->shape[args->node->n_dim - 1];
    for (int64_t row = begin; row < end; row++)
        softmax_row((const real *)args->in[0] + row * n, (real *)args->out + row * n, n);
}

/* Larger first; of equal ones the lower index first; NaN behind everything, so that an order always exists. */
static bool before(const real *x, int64_t a, int64_t b) {
    if (x[a] > x[b]) return true;
    if (x[a] < x[b]) return false;
    bool nan_a = x[a] != x[a], nan_b = x[b] != x[b];
    return nan_a != nan_b ? nan_b : a < b;
}

/* Which groups of elements may be chosen from: those with the largest sums of their two largest elements. */
static void choose_groups(const real *x, int64_t n, const fd_node *node, bool open[FD_MAX_GROUPS]) {
    int64_t each = n / node->n_group;
    real sum[FD_MAX_GROUPS];
    for (int64_t g = 0; g < node->n_group; g++) {
        const real *group = x + g * each;
        int64_t best = 0, second = -1;
        for (int64_t i = 1; i < each; i++)
            if (before(group, i, best))
                second = best, best = i;
            else if (second < 0 || before(group, i, second))
                second = i;
        sum[g] = group[best] + group[second];
    }
    for (int64_t g = 0; g < node->n_group; g++) {
        int64_t better = 0;
        for (int64_t i = 0; i < node->n_group; i++) better += i != g && before(sum, i, g);
        open[g] = better < node->n_group_used;
    }
}

/* An item is a position: a selection by insertion, for k is small. */
void REF(top_k)(const fd_op_args *args, int64_t begin, int64_t end) {
    int64_t n = fd_node_width(fd_ref_input(args, 0)), k = args->node->shape[0], n_group = args->node->n_group;
    for (int64_t row = begin; row < end; row++) {
        const real *x = (const real *)args->in[0] + row * n;
        real *id = (real *)args->out + row * k;
        int64_t kept = 0;
        bool open[FD_MAX_GROUPS];
        if (n_group > 0) choose_groups(x, n, args->node, open);
        for (int64_t i = 0; i < n; i++) {
            int64_t at = kept;
            if (n_group > 0 && !open[i / (n / n_group)]) continue;
            while (at > 0 && before(x, i, (int64_t)id[at - 1])) at--;
            if (at == k) continue;
            kept += kept < k;
            for (int64_t m = kept - 1; m > at; m--) id[m] = id[m - 1];
            id[at] = (real)i;
        }
    }
}

/* The chosen elements, divided by their sum or made a softmax of their own, times the scale where there is one. */
void REF(expert_weights)(const fd_op_args *args, int64_t begin, int64_t end) {
    int64_t n = fd_node_width(fd_ref_input(args, 0)), k = args->node->shape[0];
    fd_gating gating = args->node->gating;
    for (int64_t row = begin; row < end; row++) {
        const real *x = (const real *)args->in[0] + row * n, *id = (const real *)args->in[1] + row * k;
        real *w = (real *)args->out + row * k;
        for (int64_t r = 0; r < k; r++) {
            int64_t expert = fd_expert_of((double)id[r], n);
            w[r] = expert < 0 ? (real)NAN : x[expert];
        }
        if (gating == FD_GATING_SOFTMAX) softmax_row(w, w, k);
        if (gating == FD_GATING_NORMALISED) {
            real sum = real_total_of(w, k);
            for (int64_t r = 0; r < k; r++) w[r] = w[r] / sum;
        }
        if (args->node->scale != 1.0f)
            for (int64_t r = 0; r < k; r++) w[r] = w[r] * (real)args->node->scale;
    }
}

/* y[r][o] = W_e[o]·x_r, plus bias_e[o], e the expert of rank r: the dot and the bias of MATMUL. Either all ranks read
 * one x or each its own row. An item is an output row o, for all positions and ranks. */
void REF(expert_matmul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *input = fd_ref_input(args, 0);
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    int64_t n = weight->n_col, n_out = args->node->shape[1], k = args->node->shape[0];
    int64_t n_expert = weight->n_row / n_out, x_rows = input->n_dim == 2 ? input->shape[0] : 1;
    float w[FD_PIECE];

    for (int64_t item = 0; item < args->n_pos * k; item++) {
        int64_t expert = fd_expert_of((double)((const real *)args->in[1])[item], n_expert);
        const real *x = (const real *)args->in[0] + (x_rows == 1 ? item / k : item) * n;
        real *y = (real *)args->out + item * n_out;
        for (int64_t o = begin; o < end; o++) {
            real_sum s = {0};
            for (int64_t at = 0; at < n && expert >= 0; at += FD_PIECE) {
                fd_weight_piece(weight, expert * n_out + o, at, w);
                real_add_products(&s, w, x + at, fd_piece_length(n, at));
            }
            y[o] = expert < 0 ? (real)NAN : real_total(&s);
            if (bias && expert >= 0) y[o] = y[o] + (real)fd_weight_row_element(bias, expert, o);
        }
    }
}

/* y[i] = Σ_r w[r]·x[r][i]: acc = fma(w, x, acc) from +0, by rank. An item is an element. */
void REF(expert_sum)(const fd_op_args *args, int64_t begin, int64_t end) {
    int64_t n = args->node->shape[0], k = fd_ref_input(args, 1)->shape[0];
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / n, i = item % n;
        const real *x = (const real *)args->in[0] + row * k * n + i, *w = (const real *)args->in[1] + row * k;
        real acc = 0;
        for (int64_t r = 0; r < k; r++) acc = real_fma(w[r], x[r * n], acc);
        ((real *)args->out)[item] = acc;
    }
}

/* SLICE, CONCAT, HEAD_MATMUL: what is done with each head by itself. */
#include "reference_cpu/real.h"
#include "model/weight_rows.h"

/* y[h][i] = x[h][first + i]. An item is an element. */
void REF(slice)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *x_node = fd_ref_input(args, 0);
    int64_t n_in = x_node->shape[x_node->n_dim - 1], n = fd_node_width(args->node) / (fd_node_width(x_node) / n_in);
    const real *x = args->in[0];
    real *y = args->out;
    for (int64_t i = begin; i < end; i++) y[i] = x[i / n * n_in + args->node->first + i % n];
}

/* y[h] = a[h], b[h]: b's only head serves all. An item is an element. */
void REF(concat)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *a_node = fd_ref_input(args, 0), *b_node = fd_ref_input(args, 1);
    int64_t n_head = a_node->shape[0], n_a = a_node->shape[1], n_b = b_node->shape[1], n = n_a + n_b;
    const real *a = args->in[0], *b = args->in[1];
    real *y = args->out;
    for (int64_t item = begin; item < end; item++) {
        int64_t head = item / n, i = item % n;
        int64_t of_b = b_node->shape[0] == 1 ? head / n_head : head;
        y[item] = i < n_a ? a[head * n_a + i] : b[of_b * n_b + i - n_a];
    }
}

/* y[h][o] = W[h][o]·x[h], the dot of MATMUL. An item is a row of W, for all positions. */
void REF(head_matmul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0];
    int64_t n = weight->n_col, n_head = args->node->shape[0], n_out = args->node->shape[1];
    float w[FD_PIECE];
    for (int64_t o = begin; o < end; o++)
        for (int64_t row = 0; row < args->n_pos; row++) {
            const real *x = (const real *)args->in[0] + (row * n_head + o / n_out) * n;
            real_sum s = {0};
            for (int64_t at = 0; at < n; at += FD_PIECE) {
                fd_weight_piece(weight, o, at, w);
                real_add_products(&s, w, x + at, fd_piece_length(n, at));
            }
            ((real *)args->out)[row * weight->n_row + o] = real_total(&s);
        }
}

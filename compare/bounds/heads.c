/* SLICE, CONCAT: copies, off by what their inputs are. HEAD_MATMUL: a product a head. */
#include "compare/bounds/internal.h"

void fd_bound_slice(const fd_bound_work *work) {
    const fd_node *node = work->node, *x = &work->op->graph->nodes[node->input[0]];
    int64_t n_in = x->shape[x->n_dim - 1], n = work->stride / (fd_node_width(x) / n_in);
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++)
        work->tau[i] = work->e[0][i / n * n_in + node->first + i % n];
}

void fd_bound_concat(const fd_bound_work *work) {
    const fd_node *a = &work->op->graph->nodes[work->node->input[0]],
                  *b = &work->op->graph->nodes[work->node->input[1]];
    int64_t n_a = a->shape[1], n_b = b->shape[1], n = n_a + n_b;
    for (int64_t item = 0; item < work->op->n_pos * work->stride; item++) {
        int64_t head = item / n, i = item % n, of_b = b->shape[0] == 1 ? head / a->shape[0] : head;
        work->tau[item] = i < n_a ? work->e[0][head * n_a + i] : work->e[1][of_b * n_b + i - n_a];
    }
}

void fd_bound_head_matmul(const fd_bound_work *work) {
    const fd_weight *w = work->op->weight[0];
    int64_t n_head = work->node->shape[0], n_out = work->node->shape[1];
    for (int64_t item = 0; item < work->op->n_pos * n_head; item++) {
        fd_bound_products part = {.weight = w,
                                  .first_row = item % n_head * n_out,
                                  .n_out = n_out,
                                  .n_pos = 1,
                                  .x = work->in[0] + item * w->n_col,
                                  .e = work->e[0] + item * w->n_col,
                                  .y = work->y + item * n_out,
                                  .tau = work->tau + item * n_out};
        fd_bound_of_products(work, &part);
    }
}

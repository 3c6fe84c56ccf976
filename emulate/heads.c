/* SLICE, CONCAT, HEAD_MATMUL. */
#include <string.h>

#include "emulate/internal.h"

fd_code fd_emulate_slice(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)e, (void)err;
    const fd_node *input = fd_emulate_input(args, 0);
    int64_t n_in = input->shape[input->n_dim - 1], n = fd_node_width(args->node) / (fd_node_width(input) / n_in);
    const float *x = (const float *)args->in[0] + args->node->first;
    float *y = args->out;
    for (int64_t head = 0; head < args->n_pos * fd_node_width(args->node) / n; head++)
        memcpy(y + head * n, x + head * n_in, sizeof *y * (size_t)n);
    return FD_OK;
}

fd_code fd_emulate_concat(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)e, (void)err;
    const fd_node *a = fd_emulate_input(args, 0), *b = fd_emulate_input(args, 1);
    const float *from_a = args->in[0], *from_b = args->in[1];
    float *y = args->out;
    for (int32_t p = 0; p < args->n_pos; p++, from_b += fd_node_width(b))
        for (int32_t head = 0; head < a->shape[0]; head++) {
            memcpy(y, from_a, sizeof *y * (size_t)a->shape[1]);
            y += a->shape[1], from_a += a->shape[1];
            memcpy(y, from_b + (b->shape[0] == 1 ? 0 : head * b->shape[1]), sizeof *y * (size_t)b->shape[1]);
            y += b->shape[1];
        }
    return FD_OK;
}

/* One product a head and position, as MATMUL makes it. */
fd_code fd_emulate_head_matmul(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    const fd_weight *weight = args->weight[0];
    int64_t n_head = args->node->shape[0], n_out = args->node->shape[1];
    for (int64_t item = 0; item < args->n_pos * n_head; item++) {
        fd_weight w = *weight;
        w.n_row = n_out;
        w.data = (const char *)weight->data + item % n_head * n_out * fd_dtype_row_bytes(weight->dtype, weight->n_col);
        fd_op_args one = *args;
        one.n_pos = 1;
        one.in[0] = (const float *)args->in[0] + item * weight->n_col;
        one.weight[0] = &w;
        one.out = (float *)args->out + item * n_out;
        FD_TRY(fd_emulate_matmul(e, &one, err));
    }
    return FD_OK;
}

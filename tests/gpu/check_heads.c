/* Ops on heads, choices in groups and wide heads, against scalar C. */
#include <math.h>
#include <stdio.h>

#include "kernels/attention/attention.h"
#include "kernels/elementwise/heads.h"
#include "kernels/elementwise/norm.h"
#include "kernels/elementwise/position.h"
#include "kernels/matvec/experts.h"
#include "tests/gpu/kernel_check.h"
#include "tests/gpu/op_of_two.h"

static void check_parts(gpu_test *test, int32_t n_head, int32_t n_head_b, int32_t n_a, int32_t n_b) {
    op_of_two o;
    char name[96];
    fd_error err = {0};
    const int32_t n = n_a + n_b;
    gpu_fill(test, op_first, (size_t)(OP_ROWS * n_head * n));
    gpu_fill(test, op_second, (size_t)(OP_ROWS * n_head * n));
    float *a = gpu_upload(test, op_first, sizeof *op_first * (size_t)(OP_ROWS * n_head * n));
    float *b = gpu_upload(test, op_second, sizeof *op_second * (size_t)(OP_ROWS * n_head * n));
    float *out = gpu_poisoned(test, (size_t)(OP_ROWS * n_head * n));
    snprintf(name, sizeof name, "%d heads of %d and %d of %d", n_head, n_a, n_head_b, n_b);

    op_begin(&o, FD_OP_CONCAT);
    op_shape(&o, 0, n_head, n_a);
    op_shape(&o, 1, n_head_b, n_b);
    op_shape(&o, 2, n_head, n);
    fd_concat concat = {a, b, OP_ROWS, n_head, n_head_b, n_a, n_b, out};
    gpu_must(fd_launch_concat(&test->queue, &concat, &err), &err);
    op_compare(test, name, "concat", out, op_reference(&o, 0), true);

    op_begin(&o, FD_OP_SLICE);
    op_shape(&o, 0, n_head, n);
    op_shape(&o, 2, n_head, n_b);
    o.nodes[2].first = n_a;
    fd_slice slice = {.x = a, .n_head = OP_ROWS * n_head, .n_in = n, .n = n_b, .first = n_a, .out = out};
    gpu_must(fd_launch_slice(&test->queue, &slice, &err), &err);
    op_compare(test, name, "slice", out, op_reference(&o, 0), true);

    op_begin(&o, FD_OP_MUL);
    op_shape(&o, 0, n_head, n);
    op_shape(&o, 1, n_head, 0);
    op_shape(&o, 2, n_head, n);
    gpu_must(fd_launch_mul(&test->queue, a, b, OP_ROWS * n_head * n, n, out, &err), &err);
    op_compare(test, name, "mul by head", out, op_reference(&o, 0), true);

    op_begin(&o, FD_OP_L2_NORM);
    op_shape(&o, 0, n_head, n);
    op_shape(&o, 2, n_head, n);
    o.nodes[2].eps = 1e-6f;
    fd_rms_norm norm = {.x = a, .eps = 1e-6f, .n_tok = OP_ROWS * n_head, .n = n};
    gpu_must(fd_launch_l2_norm(&test->queue, &norm, out, &err), &err);
    op_compare(test, name, "l2_norm", out, op_reference(&o, 0), true);

    op_begin(&o, FD_OP_RMS_NORM);
    op_shape(&o, 0, n_head, n);
    op_shape(&o, 2, n_head, n);
    o.nodes[2].eps = 1e-6f;
    norm.weight = op_weight(test, &o, 0, n_head, n);
    norm.n_weight_row = n_head;
    gpu_must(fd_launch_rms_norm(&test->queue, &norm, out, &err), &err);
    op_compare(test, name, "rms_norm, a weight a head", out, op_reference(&o, 0), true);

    op_begin(&o, FD_OP_MUL_VECTOR);
    op_shape(&o, 0, n_head * n, 0);
    op_shape(&o, 2, n_head * n, 0);
    const float *w = op_weight(test, &o, 0, 1, n_head * n);
    gpu_must(fd_launch_mul_vector(&test->queue, w, a, n_head * n, OP_ROWS, out, &err), &err);
    op_compare(test, name, "mul_vector", out, op_reference(&o, 0), true);
    gpu_release(test);
}

static void check_head_matmul(gpu_test *test, uint32_t dtype, int32_t n_head, int32_t n_out, int32_t n) {
    op_of_two o;
    char name[96];
    float *rows;
    fd_error err = {0};
    op_begin(&o, FD_OP_HEAD_MATMUL);
    op_shape(&o, 0, n_head, n);
    op_shape(&o, 2, n_head, n_out);
    void *file = gpu_random_weight(test, dtype, n_head * n_out, n, &rows);
    o.weights[0] = (fd_weight){.dtype = dtype, .n_row = n_head * n_out, .n_col = n, .data = file};
    o.args.weight[0] = &o.weights[0];
    gpu_fill(test, op_first, (size_t)(OP_ROWS * n_head * n));
    fd_expert_matmul in = {.weight = gpu_upload_weight(test, dtype, n_head * n_out, n, file),
                           .n_out = n_out,
                           .x = gpu_upload(test, op_first, sizeof *op_first * (size_t)(OP_ROWS * n_head * n)),
                           .x_each = true,
                           .n_row = OP_ROWS,
                           .k = n_head,
                           .out = gpu_poisoned(test, (size_t)(OP_ROWS * n_head * n_out))};
    gpu_must(fd_launch_expert_matmul(&test->queue, &in, &err), &err);
    snprintf(name, sizeof name, "head_matmul %s, %d heads, %d of %d", fd_dtype_get(dtype)->name, n_head, n_out, n);
    op_compare(test, name, "every bit", in.out, op_reference(&o, 0), true);
    gpu_release(test);
}

static void check_groups(gpu_test *test, int32_t n, int32_t k, int32_t n_group, int32_t n_used) {
    op_of_two o;
    char name[96];
    fd_error err = {0};
    op_begin(&o, FD_OP_TOP_K);
    op_shape(&o, 0, n, 0);
    op_shape(&o, 2, k, 0);
    o.nodes[2].n_group = n_group;
    o.nodes[2].n_group_used = n_used;
    op_fill(test, op_first, (size_t)(OP_ROWS * n));
    for (int32_t i = 0; i < n; i++) op_first[i] = 1.0f; /* all equal: the first groups */
    op_first[n + 1] = (float)NAN, op_first[n + n / n_group] = (float)INFINITY;
    fd_top_k in = {.x = gpu_upload(test, op_first, sizeof *op_first * (size_t)(OP_ROWS * n)),
                   .n_row = OP_ROWS,
                   .n = n,
                   .k = k,
                   .n_group = n_group,
                   .n_group_used = n_used,
                   .ids = gpu_poisoned(test, (size_t)(OP_ROWS * k))};
    gpu_must(fd_launch_top_k(&test->queue, &in, &err), &err);
    snprintf(name, sizeof name, "top_k %d of %d, %d of %d groups", k, n, n_used, n_group);
    op_compare(test, name, "every id", in.ids, op_reference(&o, 0), true);
    gpu_release(test);
}

/* Latent attention: all query heads share one key of n elements. */
static void check_wide_scores(gpu_test *test, int32_t n_head, int32_t n_head_kv, int32_t n, int32_t window) {
    enum { POS0 = 11, N_KV = POS0 + OP_ROWS };
    op_of_two o;
    char name[96];
    fd_error err = {0};
    const int32_t pos0 = POS0;
    op_begin(&o, FD_OP_ATTN_SCORES);
    op_shape(&o, 0, n_head, n);
    op_shape(&o, 1, n_head_kv, n);
    op_shape(&o, 2, n_head, 0);
    o.nodes[2].n_dim = 2;
    o.nodes[2].over_kv = true;
    o.nodes[2].scale = 0.05f;
    o.nodes[2].window = window;
    gpu_fill(test, op_first, (size_t)(OP_ROWS * n_head * n));
    gpu_fill(test, op_second, (size_t)(N_KV * n_head_kv * n));
    fd_attention shape = {.n_head = n_head,
                          .n_head_kv = n_head_kv,
                          .head_dim = n,
                          .n_tok = OP_ROWS,
                          .n_kv = N_KV,
                          .window = window,
                          .pos0 = (const int32_t *)(const void *)gpu_upload(test, &pos0, sizeof pos0)};
    const float *q = gpu_upload(test, op_first, sizeof *op_first * (size_t)(OP_ROWS * n_head * n));
    const float *k = gpu_upload(test, op_second, sizeof *op_second * (size_t)(N_KV * n_head_kv * n));
    float *out = gpu_poisoned(test, OP_ROWS * (size_t)n_head * N_KV);
    gpu_must(fd_launch_attn_scores(&test->queue, &shape, q, k, 0.05f, out, &err), &err);
    (void)op_reference(&o, POS0);
    snprintf(name, sizeof name, "attn_scores, %d heads over %d of %d", n_head, n_head_kv, n);
    op_compare(test, name, window ? "window" : "all before", out, OP_ROWS * (size_t)n_head * N_KV, true);
    gpu_release(test);
}

void check_heads(gpu_test *test) {
    check_parts(test, 4, 1, 48, 16);
    check_parts(test, 3, 3, 5, 7);
    check_head_matmul(test, FD_F32, 4, 24, 40);
    check_head_matmul(test, FD_Q8_0, 3, 40, 96);
    check_head_matmul(test, FD_Q4_K, 2, 33, 256);
    check_groups(test, 64, 6, 8, 3);
    check_groups(test, 32, 4, 4, 2);
    check_wide_scores(test, 8, 1, 576, 0);
    check_wide_scores(test, 4, 2, 300, 3);
}

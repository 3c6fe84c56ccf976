/* The kernels of q8act against the CPU's op, which tests/ops holds to the contract. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/int8/q8.h"
#include "numerics/contract.h"
#include "reference_cpu/reference.h"
#include "tests/gpu/fused_case.h"
#include "tests/gpu/kernel_check.h"

static const uint32_t types[] = {FD_Q8_0, FD_Q4_0, FD_Q5_0, FD_Q4_K, FD_Q6_K};
enum { N_TYPE = sizeof types / sizeof *types };

static void host_matmul(uint32_t dtype, const void *file, int64_t n_row, int64_t n_col, const float *bias,
                        const float *x, int32_t n_tok, float *out) {
    fd_weight w = {.dtype = dtype, .n_row = n_row, .n_col = n_col, .data = file};
    fd_weight b = {.dtype = FD_F32, .n_row = 1, .n_col = n_row, .data = bias};
    fd_node node = {.op = FD_OP_MATMUL, .n_dim = 1, .shape = {(int32_t)n_row}};
    fd_op_args args = {
        .node = &node, .n_pos = n_tok, .n_kv = n_tok, .in = {x}, .weight = {&w, bias ? &b : NULL}, .out = out};
    fd_reference_op(FD_NUMERICS_Q8ACT, &args);
}

/* ---- one matrix: every kernel, several numbers of rows ---- */

/* The matrix-vector kernel as it is laid over the device, tokens of a tile of the matrix kernel, or rows of weights of a
 * thread block of the kernel for few tokens. 0: chosen. */
static const fd_q8_form vector_forms[] = {
    {0}, {16, 1, 2, 1}, {1, 1, 4, 1}, {5, 2, 3, 1}, {16, 1, 2, 4}, {7, 1, 4, 3}, {8, 2, 3, 2},
};
static const int32_t tiles[] = {0, 32, 64, 128}, few_rows[] = {0, 16, 48};
enum {
    N_VECTOR = sizeof vector_forms / sizeof *vector_forms,
    N_TILE = sizeof tiles / sizeof *tiles,
    N_FEW = sizeof few_rows / sizeof *few_rows
};

static const fd_q8_form *form_of(int i) {
    return vector_forms[i].warps ? &vector_forms[i] : NULL;
}

/* No team has more warps than a row has slices. */
static bool suits(int form, int64_t n_col) {
    return vector_forms[form].split_k <= (n_col + 255) / 256;
}

static void check_shape(gpu_test *test, uint32_t dtype, int64_t n_row, int64_t n_col, const int32_t *n_toks,
                        int n_n_tok, bool special) {
    char name[160];
    int32_t most = n_toks[n_n_tok - 1];
    float *w, *x = gpu_floats(test, (size_t)(n_col * most)), *bias = gpu_floats(test, (size_t)n_row);
    float *expected = gpu_floats(test, (size_t)(n_row * most)), *found = gpu_floats(test, (size_t)(n_row * most));
    void *file = gpu_random_weight(test, dtype, n_row, n_col, &w);
    fd_device_matrix matrix = gpu_upload_weight(test, dtype, n_row, n_col, file);
    fd_error err = {0};
    gpu_fill(test, x, (size_t)(n_col * most));
    gpu_fill(test, bias, (size_t)n_row);
    if (special) { /* infinities, NaN, the largest value, a block of zeros and one too small for a scale, in some rows only */
        x[n_col / 2] = INFINITY;
        x[n_col * (most / 2) + n_col - 1] = NAN;
        x[n_col * (most - 1)] = 3.4e38f;
        for (int k = 32; k < 64; k++) x[n_col * (most - 1) + k] = 0.0f;
        for (int k = 0; k < 32; k++) x[n_col * (most / 2) + k] *= 1e-35f;
    }
    float *dx = gpu_upload(test, x, sizeof *x * (size_t)(n_col * most)),
          *dbias = gpu_upload(test, bias, sizeof *bias * (size_t)n_row);
    for (int i = 0; i < n_n_tok; i++)
        for (int form = 0; form < N_VECTOR + N_TILE + N_FEW; form++) {
            int32_t n = n_toks[i];
            bool vector = form < N_VECTOR, is_few = form >= N_VECTOR + N_TILE;
            int32_t tile = vector || is_few ? 0 : tiles[form - N_VECTOR];
            int32_t rows = is_few ? few_rows[form - N_VECTOR - N_TILE] : 0;
            if (vector && (n > 1 || !suits(form, n_col))) continue;
            if (!vector && is_few != (n <= FD_Q8_FEW)) continue;
            size_t count = (size_t)(n_row * n);
            float *out = gpu_poisoned(test, count), *scratch = NULL;
            if (vector) {
                fd_matvec in = {
                    .x = dx, .n_tok = 1, .n_part = 1, .part[0] = {.weight = matrix, .bias = dbias, .out = out}};
                gpu_must(fd_launch_q8_matvec(&test->queue, &in, form_of(form), &err), &err);
            } else {
                scratch = gpu_poisoned(test, fd_q8_rows_bytes(n_col, n) / sizeof(float) + 1);
                fd_q8_rows blocks = fd_q8_rows_at(scratch, n_col, n);
                gpu_must(fd_launch_q8_quantize(&test->queue, dx, n, n_col, &blocks, &err), &err);
                fd_q8_matmul in = {fd_matmul_of(&matrix, dbias, NULL, n, out), blocks, tile};
                gpu_must(is_few ? fd_launch_q8_matmul_few(&test->queue, &in, rows, &err)
                                : fd_launch_q8_matmul(&test->queue, &in, &err),
                         &err);
            }
            gpu_download(test, out, found, count);
            host_matmul(dtype, file, n_row, n_col, bias, x, n, expected);
            snprintf(name, sizeof name, "q8_%s_%d_%s_%lldx%lld_tokens_%d%s",
                     vector   ? "vector"
                     : is_few ? "few"
                              : "tile",
                     vector   ? form
                     : is_few ? rows
                              : tile,
                     fd_dtype_get(dtype)->name, (long long)n_row, (long long)n_col, n, special ? "_special" : "");
            gpu_expect_equal(test, name, expected, found, count);
        }
    gpu_release(test);
}

/* ---- RMS_NORM on the way in, several matrices, silu, residual ---- */

static void check_fused(gpu_test *test, uint32_t dtype, const fused_case *f, int form, bool overlap) {
    static fused_inputs inputs;
    static float expected[FD_MATVEC_PARTS][FUSED_MOST], found[FUSED_MOST];
    char name[160], behind[16];
    fd_error err = {0};
    fd_launch_context queue = test->queue;
    queue.overlap = overlap;
    fd_matvec in;
    fused_open(test, f, &inputs, &in);
    for (int p = 0; p < f->n_part; p++) {
        float *w;
        void *file = fused_part(test, dtype, f, p, inputs.device_bias, inputs.device_residual, &in, &w);
        host_matmul(dtype, file, f->n_row[p], f->n_col, p == 1 ? NULL : inputs.bias, inputs.x, 1, expected[p]);
        for (int64_t i = 0; f->residual && i < f->n_row[p]; i++) expected[p][i] = inputs.residual[i] + expected[p][i];
    }
    for (int64_t i = 0; f->silu && i < f->n_row[0]; i++) expected[0][i] = fd_silu32(expected[0][i]) * expected[1][i];
    gpu_must(fd_launch_q8_matvec(&queue, &in, form_of(form), &err), &err);
    snprintf(behind, sizeof behind, "_form_%d", form);
    for (int p = 0; p < (f->silu ? 1 : f->n_part); p++) {
        gpu_download(test, in.part[p].out, found, (size_t)f->n_row[p]);
        fused_name(name, sizeof name, "q8_fused", dtype, f, p, behind);
        gpu_expect_equal(test, name, expected[p], found, (size_t)f->n_row[p]);
    }
    gpu_release(test);
}

/* The data tell q8act from exact products, and an element's last bit shows. */
static void check_data(gpu_test *test, uint32_t dtype) {
    enum { N = 512, ROWS = 8 };
    float *w, x[N], exact[ROWS], q8[ROWS], other[ROWS];
    size_t first;
    void *file = gpu_random_weight(test, dtype, ROWS, N, &w);
    gpu_fill(test, x, N);
    host_matmul(dtype, file, ROWS, N, NULL, x, 1, q8);
    for (int r = 0; r < ROWS; r++) exact[r] = fd_dot(w + r * N, x, N);
    gpu_expect(test, "q8_is_not_exact", gpu_differing(exact, q8, ROWS, &first) > 0);
    float largest = 0;
    memset(x + 32, 0, sizeof x - 32 * sizeof *x); /* gpu_fill's magnitudes vary: another block could drown the first */
    host_matmul(dtype, file, ROWS, N, NULL, x, 1, q8);
    for (int k = 0; k < 32; k++) largest = fmaxf(largest, fabsf(x[k]));
    for (int k = 0; k < 32; k++)
        if (fabsf(x[k]) == largest) x[k] *= 1 + 0x1p-20f; /* the scale of the first block, some last bits */
    host_matmul(dtype, file, ROWS, N, NULL, x, 1, other);
    gpu_expect(test, "q8_scale_has_all_bits", gpu_differing(other, q8, ROWS, &first) > 0);
    gpu_release(test);
}

/* ---- experts ---- */

static void check_experts_of(gpu_test *test, uint32_t dtype, int32_t n_out, int32_t n_in, bool each, bool with_bias) {
    enum { ROWS = 7, CHOSEN = 3, N_EXPERT = 4, MOST_OUT = 130, MOST_IN = 768 };
    static float x[ROWS * CHOSEN * MOST_IN], ids[ROWS * CHOSEN], bias[N_EXPERT * MOST_OUT],
        expected[ROWS * CHOSEN * MOST_OUT], found[ROWS * CHOSEN * MOST_OUT];
    char name[96];
    fd_error err = {0};
    float *w;
    void *file = gpu_random_weight(test, dtype, N_EXPERT * n_out, n_in, &w);
    gpu_fill(test, x, (size_t)(ROWS * (each ? CHOSEN : 1) * n_in));
    gpu_fill(test, bias, (size_t)(N_EXPERT * n_out));
    for (int i = 0; i < ROWS * CHOSEN; i++) ids[i] = (float)(gpu_random_bits(test) % N_EXPERT);
    ids[4] = 99.0f, ids[9] = -1.0f; /* name no expert */

    fd_weight weight = {.dtype = dtype, .n_row = N_EXPERT * n_out, .n_col = n_in, .data = file};
    fd_weight b = {.dtype = FD_F32, .n_row = N_EXPERT, .n_col = n_out, .data = bias};
    fd_node nodes[] = {{.n_dim = 2, .shape = {CHOSEN, n_in}},
                       {.op = FD_OP_EXPERT_MATMUL, .n_dim = 2, .shape = {CHOSEN, n_out}, .input = {0, 0}}};
    if (!each) nodes[0] = (fd_node){.n_dim = 1, .shape = {n_in}};
    fd_graph graph = {.nodes = nodes, .n_node = 2};
    fd_op_args args = {
        .graph = &graph, .node = &nodes[1], .n_pos = ROWS, .n_kv = ROWS, .in = {x, ids}, .out = expected};
    args.weight[0] = &weight;
    args.weight[1] = with_bias ? &b : NULL;
    fd_reference_op(FD_NUMERICS_Q8ACT, &args);

    size_t n = (size_t)(ROWS * CHOSEN * n_out);
    fd_expert_matmul job = {.weight = gpu_upload_weight(test, dtype, N_EXPERT * n_out, n_in, file),
                            .bias = with_bias ? gpu_upload(test, bias, sizeof bias) : NULL,
                            .n_out = n_out,
                            .x = gpu_upload(test, x, sizeof x),
                            .x_each = each,
                            .ids = gpu_upload(test, ids, sizeof ids),
                            .n_row = ROWS,
                            .k = CHOSEN,
                            .out = gpu_poisoned(test, n)};
    gpu_must(fd_launch_q8_expert_matmul(&test->queue, &job, &err), &err);
    gpu_download(test, job.out, found, n);
    snprintf(name, sizeof name, "q8_experts_%s_%dx%d%s%s", fd_dtype_get(dtype)->name, n_out, n_in, each ? "_each" : "",
             with_bias ? "_bias" : "");
    gpu_expect_equal(test, name, expected, found, n);
    gpu_release(test);
}

void check_q8(gpu_test *test) {
    static const int32_t few[] = {1, 2, 9, 33, 67}, many[] = {1, 4, 31, 32, 64, 65, 128, 131, 257}, one[] = {1};
    static const int64_t shapes[][2] = {{1, 32},    {33, 96},  {70, 256},  {37, 768}, {130, 896},
                                        {16, 2048}, {5, 4864}, {257, 512}, {9, 160}};
    for (int i = 0; i < N_TYPE; i++) {
        int32_t block = fd_dtype_get(types[i])->block_elements;
        check_data(test, types[i]);
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            if (shapes[k][1] % block == 0) check_shape(test, types[i], shapes[k][0], shapes[k][1], few, 5, false);
        for (int each = 0; each < 2; each++) {
            check_experts_of(test, types[i], 70, 256, each, true);
            check_experts_of(test, types[i], 130, 768, each, false);
            if (block == 32) check_experts_of(test, types[i], 5, 160, each, true);
        }
        check_shape(test, types[i], 300, 1024, many, 9, false);
        check_shape(test, types[i], 40, 256, few, 5, true);
        /* Enough rows for each warp to have several tasks, the last of them not full. */
        check_shape(test, types[i], (int64_t)test->queue.n_sm * 160 + 37, 256, one, 1, false);
        for (int k = 0; k < N_FUSED_CASE; k++)
            for (int form = 0; form < N_VECTOR; form++)
                if (suits(form, fused_cases[k].n_col)) check_fused(test, types[i], &fused_cases[k], form, k % 3 == 0);
    }
}

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/matmul/matmul.h"
#include "model/gguf/quant.h"
#include "numerics/contract.h"
#include "tests/gpu/fused_case.h"
#include "tests/gpu/kernel_check.h"

static const uint32_t *const types = gpu_weight_types;
enum { N_TYPE = GPU_LAYOUTS };

/* out[t, r] = W[r]·x[t] + bias[r] */
static void host_matmul(const float *w, const float *bias, const float *x, int64_t n_row, int64_t n_col, int64_t n_tok,
                        float *out) {
    for (int64_t t = 0; t < n_tok; t++)
        for (int64_t r = 0; r < n_row; r++) {
            float dot = fd_dot(w + r * n_col, x + t * n_col, n_col);
            out[t * n_row + r] = bias ? dot + bias[r] : dot;
        }
}

void check_comparison(gpu_test *test) {
    float x[300], w[300], copy[300];
    size_t first;
    gpu_fill(test, x, 300);
    gpu_fill(test, w, 300);
    for (int i = 0; i < 300; i++) copy[i] = x[i];
    gpu_expect(test, "equal_bits_are_equal", gpu_differing(x, copy, 300, &first) == 0);
    copy[123] = fd_from_bits32(fd_bits32(x[123]) ^ 1u);
    gpu_expect(test, "one_bit_is_found", gpu_differing(x, copy, 300, &first) == 1 && first == 123);
    copy[123] = NAN;
    gpu_expect(test, "nan_is_found", gpu_differing(x, copy, 300, &first) == 1);
    float zero = 0.0f, minus_zero = -0.0f;
    gpu_expect(test, "signs_of_zero_differ", gpu_differing(&zero, &minus_zero, 1, &first) == 1);

    float in_a_row = 0.0f;
    for (int i = 0; i < 300; i++) in_a_row = fmaf(w[i], x[i], in_a_row);
    gpu_expect(test, "random_data_tell_orders_apart", fd_bits32(in_a_row) != fd_bits32(fd_dot(w, x, 300)));

    /* Packing keeps every format's bits apart: a wrong permutation would have to be undone by the kernels to pass. */
    for (int i = 0; i < GPU_WEIGHT_TYPES; i++) {
        float *rows;
        (void)gpu_random_weight(test, types[i], 1, 512, &rows);
        bool finite = true;
        for (int k = 0; k < 512; k++) finite = finite && isfinite(rows[k]);
        gpu_expect(test, "random_weights_are_finite", finite);
    }
    gpu_release(test);
}

typedef struct shape {
    int64_t n_row, n_col;
} shape;

/* The forms of the matrix-vector kernel, that without rings first. */
static const fd_matvec_form forms[] = {
    {8, 1, 8, 1, 0, false}, {8, 2, 8, 1, 0, false}, {8, 1, 8, 1, 3, false},  {8, 2, 8, 2, 2, false},
    {2, 1, 8, 2, 3, false}, {2, 2, 8, 1, 4, false}, {8, 2, 16, 1, 2, false}, {2, 2, 1, 1, 2, false},
    {8, 1, 3, 1, 2, false}, {2, 1, 16, 1, 2, true}, {2, 2, 8, 1, 3, true},   {2, 2, 1, 2, 4, true},
};
enum { N_FORM = sizeof forms / sizeof *forms };

/* Whether a form without its conditions on rows can run the product: rings want whole groups, and bulk copies
 * floats. */
static bool form_takes(const gpu_test *test, const fd_matvec_form *form, uint32_t dtype, int64_t n_col) {
    return (form->stages == 0 || n_col % 64 == 0) &&
           (!form->bulk || (test->queue.has_clusters && !fd_dtype_get(dtype)->is_quantised));
}

static void check_shape(gpu_test *test, uint32_t dtype, shape s, const int32_t *n_toks, int n_n_tok, bool special) {
    char name[160];
    int32_t most = n_toks[n_n_tok - 1];
    float *w, *x = gpu_floats(test, (size_t)(s.n_col * most)), *bias = gpu_floats(test, (size_t)s.n_row);
    float *expected = gpu_floats(test, (size_t)(s.n_row * most)), *found = gpu_floats(test, (size_t)(s.n_row * most));
    void *file = gpu_random_weight(test, dtype, s.n_row, s.n_col, &w);
    fd_device_matrix matrix = gpu_upload_weight(test, dtype, s.n_row, s.n_col, file);
    fd_error err = {0};
    gpu_fill(test, x, (size_t)(s.n_col * most));
    gpu_fill(test, bias, (size_t)s.n_row);
    if (special) { /* infinities, NaN and the largest value, in some rows only */
        x[s.n_col / 2] = INFINITY;
        x[s.n_col * (most / 2) + s.n_col - 1] = NAN;
        x[s.n_col * (most - 1)] = 3.4e38f;
    }
    float *dx = gpu_upload(test, x, sizeof *x * (size_t)(s.n_col * most)),
          *dbias = gpu_upload(test, bias, sizeof *bias * (size_t)s.n_row);
    for (int i = 0; i < n_n_tok; i++)
        for (int kernel = 0; kernel < 3 + N_FORM; kernel++) { /* chosen, the tiles, the forms of matrix-vector */
            static const char *const kernels[] = {"matmul", "large tile", "small tile"};
            const fd_matvec_form *form = kernel < 3 ? NULL : &forms[kernel - 3];
            char kernel_name[32];
            if (form)
                snprintf(kernel_name, sizeof kernel_name, "vector %d", kernel - 3);
            else
                snprintf(kernel_name, sizeof kernel_name, "%s", kernels[kernel]);
            int32_t n = n_toks[i];
            bool biased = kernel != 1 && kernel != 2;
            if (form && (n > FD_MATVEC_TOKENS || !fd_matvec_fits(&test->queue, s.n_col, 1))) continue;
            if (form && ((form->stages > 0 && n > 1) || !form_takes(test, form, dtype, s.n_col))) continue;
            size_t count = (size_t)(s.n_row * n);
            float *out = gpu_poisoned(test, count);
            fd_matmul one = fd_matmul_of(&matrix, biased ? dbias : NULL, dx, n, out);
            if (kernel == 0) gpu_must(fd_launch_matmul(&test->queue, &one, &err), &err);
            if (kernel == 1) gpu_must(fd_launch_matmul_tile_large(&test->queue, &one, &err), &err);
            if (kernel == 2) gpu_must(fd_launch_matmul_tile_small(&test->queue, &one, &err), &err);
            if (form) {
                fd_matvec in = {
                    .x = dx, .n_tok = n, .n_part = 1, .part[0] = {.weight = matrix, .bias = dbias, .out = out}};
                gpu_must(fd_launch_matvec(&test->queue, &in, form, &err), &err);
            }
            gpu_download(test, out, found, count);
            host_matmul(w, biased ? bias : NULL, x, s.n_row, s.n_col, n, expected);
            snprintf(name, sizeof name, "%s_%s_%lldx%lld_tokens_%d%s", kernel_name, fd_dtype_get(dtype)->name,
                     (long long)s.n_row, (long long)s.n_col, n, special ? "_special" : "");
            gpu_expect_equal(test, name, expected, found, count);
        }
    gpu_release(test);
}

/* ---- what an offset inside the multiply-add gets wrong (kernels/formats/formats.cuh), and the rows done again for
 * it ---- */

static bool has_fused_offset(uint32_t dtype) {
    return dtype == FD_Q8_0 || dtype == FD_Q4_0 || dtype == FD_Q5_0 || dtype == FD_Q3_K || dtype == FD_Q6_K;
}

/* A block whose elements are all `d`, or all `d`·0. */
static void fill_block(uint32_t dtype, uint8_t *block, bool zero, uint16_t d) {
    uint8_t nibbles = 0;
    if (dtype == FD_Q8_0) memset(((fd_block_q8_0 *)block)->qs, zero ? 0 : 1, 32);
    if (dtype == FD_Q4_0) nibbles = zero ? 0x88 : 0x99, memset(((fd_block_q4_0 *)block)->qs, nibbles, 16);
    if (dtype == FD_Q5_0) {
        memset(((fd_block_q5_0 *)block)->qh, 0xff, 4);
        memset(((fd_block_q5_0 *)block)->qs, zero ? 0x00 : 0x11, 16);
    }
    if (dtype == FD_Q6_K) {
        fd_block_q6_K *b = (fd_block_q6_K *)block;
        memset(b->ql, zero ? 0x00 : 0x11, sizeof b->ql);
        memset(b->qh, 0xaa, sizeof b->qh);
        memset(b->scales, 1, sizeof b->scales);
    }
    if (dtype == FD_Q3_K) { /* scales of 33 - 32 */
        fd_block_q3_K *b = (fd_block_q3_K *)block;
        memset(b->hmask, 0xff, sizeof b->hmask);
        memset(b->qs, zero ? 0x00 : 0x55, sizeof b->qs);
        memset(b->scales, 0x11, 8);
        memset(b->scales + 8, 0xaa, 4);
    }
    memcpy(dtype == FD_Q6_K   ? block + offsetof(fd_block_q6_K, d)
           : dtype == FD_Q3_K ? block + offsetof(fd_block_q3_K, d)
                              : block,
           &d, sizeof d);
}

/* Row 0: products that underflow to -0, then elements that are -0: the dot is -0. Row 1: an infinite scale. Row 2: a
 * zero scale. */
static void check_doubtful(gpu_test *test, uint32_t dtype) {
    enum { N_ROW = 3, MOST = 512 };
    const int64_t block = fd_dtype_get(dtype)->block_elements, bytes = fd_dtype_get(dtype)->block_bytes;
    const int64_t n_block = block == 256 ? 2 : 8, n_col = n_block * block;
    static uint8_t file[N_ROW * 8 * 256];
    static float w[N_ROW * MOST], x[MOST];
    float expected[N_ROW], found[N_ROW];
    char name[96];
    fd_error err = {0};
    for (int64_t r = 0; r < N_ROW; r++)
        for (int64_t b = 0; b < n_block; b++) {
            const uint16_t scales[N_ROW] = {0x8001, b == 0 ? 0x7c00 : 0x8001, 0x0000}; /* -2^-24, Inf, 0 */
            fill_block(dtype, file + (r * n_block + b) * bytes, b >= n_block - n_block / 4 - (block == 256), scales[r]);
        }
    for (int64_t i = 0; i < n_col; i++) x[i] = 0x1p-149f;
    for (int64_t r = 0; r < N_ROW; r++) fd_dequantize_row(dtype, file + r * n_block * bytes, w + r * n_col, n_col);
    host_matmul(w, NULL, x, N_ROW, n_col, 1, expected);
    snprintf(name, sizeof name, "doubtful_%s_has_a_negative_zero_and_an_infinity", fd_dtype_get(dtype)->name);
    gpu_expect(test, name, fd_bits32(expected[0]) == 0x80000000u && isinf(expected[1]) && expected[2] == 0.0f);

    fd_device_matrix matrix = gpu_upload_weight(test, dtype, N_ROW, n_col, file);
    float *dx = gpu_upload(test, x, sizeof *x * (size_t)n_col);
    for (int i = 0; i < N_FORM; i++) {
        if (!form_takes(test, &forms[i], dtype, n_col)) continue;
        float *out = gpu_poisoned(test, N_ROW);
        fd_matvec in = {.x = dx, .n_tok = 1, .n_part = 1, .part[0] = {.weight = matrix, .out = out}};
        gpu_must(fd_launch_matvec(&test->queue, &in, &forms[i], &err), &err);
        gpu_download(test, out, found, N_ROW);
        snprintf(name, sizeof name, "doubtful_%s_form_%d", fd_dtype_get(dtype)->name, i);
        gpu_expect_equal(test, name, expected, found, N_ROW);
    }
    /* Three token rows, the second of them this one. */
    static float three[3 * MOST];
    memcpy(three + n_col, x, sizeof *x * (size_t)n_col);
    dx = gpu_upload(test, three, sizeof *three * (size_t)(3 * n_col));
    float *out = gpu_poisoned(test, 3 * N_ROW), found_three[3 * N_ROW];
    fd_matvec tokens = {.x = dx, .n_tok = 3, .n_part = 1, .part[0] = {.weight = matrix, .out = out}};
    gpu_must(fd_launch_matvec(&test->queue, &tokens, NULL, &err), &err);
    gpu_download(test, out, found_three, 3 * N_ROW);
    snprintf(name, sizeof name, "doubtful_%s_second_of_three_rows", fd_dtype_get(dtype)->name);
    gpu_expect_equal(test, name, expected, found_three + N_ROW, N_ROW);
    gpu_release(test);
}

void check_matmul(gpu_test *test) {
    static const int32_t few[] = {1, 2, 3, 8, 9, 17}, one[] = {1, 5}, many[] = {1, 4, 16, 40}, band[] = {33, 545};
    for (int i = 0; i < N_TYPE; i++) {
        uint32_t dtype = types[i];
        int32_t block = fd_dtype_get(dtype)->block_elements;
        static const shape shapes[] = {{1, 64}, {33, 96}, {70, 256}, {37, 768}, {130, 896}, {16, 2048}, {5, 4864}};
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            if (shapes[k].n_col % block == 0) check_shape(test, dtype, shapes[k], few, 6, false);
        check_shape(test, dtype, (shape){100, 512}, many, 4, false);
        if (has_fused_offset(dtype)) check_doubtful(test, dtype);
        check_shape(test, dtype, (shape){40, 256}, few, 6, true);
        /* More tokens than a band of the tiled kernel has, and last tiles that are not full. */
        check_shape(test, dtype, (shape){45, 768}, band, 2, false);
        /* Enough rows for eight lanes a row to be chosen, and a last tile that is not full. */
        check_shape(test, dtype, (shape){(int64_t)test->queue.n_sm * 64 + 37, 256}, one, 2, false);
        if (block > 1) continue;
        static const shape odd[] = {{37, 172}, {5, 7}, {19, 65}, {9, 1}, {40, 130}, {41, 260}, {22, 511}};
        for (size_t k = 0; k < sizeof odd / sizeof *odd; k++) check_shape(test, dtype, odd[k], few, 6, false);
    }
    for (int i = GPU_LAYOUTS; i < GPU_WEIGHT_TYPES; i++)
        check_shape(test, gpu_weight_types[i], (shape){37, 768}, one, 2, false);
}

/* ---- RMS_NORM on the way in, several matrices, silu, residual ---- */

static void check_fused(gpu_test *test, uint32_t dtype, const fused_case *f, bool overlap) {
    static fused_inputs inputs;
    static float expected[FD_MATVEC_PARTS][FUSED_MOST], products[FD_MATVEC_PARTS][FUSED_MOST], found[FUSED_MOST];
    char name[160], form[16];
    fd_error err = {0};
    fd_launch_context queue = test->queue;
    queue.overlap = overlap;
    fd_matvec in;
    fused_open(test, f, &inputs, &in);
    in.norm_out = f->norm ? gpu_poisoned(test, (size_t)f->n_col) : NULL;
    for (int p = 0; p < f->n_part; p++) {
        float *w;
        (void)fused_part(test, dtype, f, p, inputs.device_bias, inputs.device_residual, &in, &w);
        host_matmul(w, p == 1 ? NULL : inputs.bias, inputs.x, f->n_row[p], f->n_col, 1, expected[p]);
        in.part[p].product = gpu_poisoned(test, (size_t)f->n_row[p]);
        memcpy(products[p], expected[p], sizeof products[p]);
        for (int64_t r = 0; f->residual && r < f->n_row[p]; r++) expected[p][r] = inputs.residual[r] + expected[p][r];
    }
    for (int64_t r = 0; f->silu && r < f->n_row[0]; r++) expected[0][r] = fd_silu32(expected[0][r]) * expected[1][r];
    for (int i = 0; i < N_FORM; i++) {
        if (!form_takes(test, &forms[i], dtype, f->n_col) ||
            (forms[i].stages > 0 && f->silu && forms[i].rows != 2 && forms[i].partials == 2))
            continue;
        gpu_must(fd_launch_matvec(&queue, &in, &forms[i], &err), &err);
        for (int p = 0; p < (f->silu ? 1 : f->n_part); p++) {
            gpu_download(test, in.part[p].out, found, (size_t)f->n_row[p]);
            snprintf(form, sizeof form, "_form_%d", i);
            fused_name(name, sizeof name, "fused", dtype, f, p, form);
            gpu_expect_equal(test, name, expected[p], found, (size_t)f->n_row[p]);
        }
        for (int p = 0; p < f->n_part; p++) {
            gpu_download(test, in.part[p].product, found, (size_t)f->n_row[p]);
            snprintf(name, sizeof name, "fused_%s_%lldx%lld_part_%d_product_kept", fd_dtype_get(dtype)->name,
                     (long long)f->n_row[p], (long long)f->n_col, p);
            gpu_expect_equal(test, name, products[p], found, (size_t)f->n_row[p]);
        }
        if (!f->norm) continue;
        gpu_download(test, in.norm_out, found, (size_t)f->n_col);
        snprintf(name, sizeof name, "fused_%s_%lld_columns_norm_kept", fd_dtype_get(dtype)->name, (long long)f->n_col);
        gpu_expect_equal(test, name, inputs.x, found, (size_t)f->n_col);
    }
    gpu_release(test);
}

void check_matvec_fused(gpu_test *test) {
    for (int i = 0; i < N_TYPE; i++)
        for (int k = 0; k < N_FUSED_CASE; k++) check_fused(test, types[i], &fused_cases[k], k % 3 == 0);
    static const fused_case odd = {3, {9, 4, 2}, 90, true, false, false};
    for (int i = 0; i < 3; i++) check_fused(test, types[i], &odd, false);
}

/* Products of few tokens by halves (kernels/matmul/few_f16.h) against sums in binary64, and every token against itself
 * among others. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/matmul/few_f16.h"
#include "tests/gpu/kernel_check.h"

/* Halves are off by 2^-22 of an element; tensor cores' sums in binary32 may be cut, not rounded, once in 16 columns. */
static double bound_of(double of_magnitudes, int64_t n_col) {
    return of_magnitudes * (0x1p-20 + (double)n_col * 0x1p-26);
}

/* The largest error in bounds; NaN where one is. `most`: rows that `out` has, [n_tok, n_row]. */
static double worst_of(const float *w, const float *x, const float *out, int64_t n_row, int64_t n_col, int32_t n_tok,
                       int64_t left_out) {
    double worst = 0.0;
    for (int32_t t = 0; t < n_tok; t++)
        for (int64_t r = 0; r < n_row; r++) {
            double sum = 0.0, magnitudes = 0.0;
            for (int64_t k = 0; k < n_col; k++) {
                double term = (double)w[r * n_col + k] * (double)x[t * n_col + k];
                if (k != left_out) sum += term;
                magnitudes += fabs(term);
            }
            double off = fabs((double)out[t * n_row + r] - sum) / (bound_of(magnitudes, n_col) + 0x1p-120);
            if (!(off <= worst)) worst = off;
        }
    return worst;
}

static void check_shape(gpu_test *test, int64_t n_row, int64_t n_col, const int32_t *n_toks, int n_n_tok) {
    static const int32_t rows[] = {0, 16, 48};
    char name[128];
    int32_t most = n_toks[n_n_tok - 1];
    fd_error err = {0};
    float *w, *x = gpu_floats(test, (size_t)(n_col * most)), *found = gpu_floats(test, (size_t)(n_row * most));
    float *first = gpu_floats(test, (size_t)(n_row * most));
    void *file = gpu_random_weight(test, FD_F16, n_row, n_col, &w);
    fd_device_matrix matrix = gpu_upload_weight(test, FD_F16, n_row, n_col, file);
    gpu_fill(test, x, (size_t)(n_col * most));
    for (int64_t k = 0; k < n_col; k++) x[k] *= 0x1p90f;                          /* one token's are large, */
    for (int64_t k = 0; most > 2 && k < n_col; k++) x[2 * n_col + k] *= 0x1p-90f; /* one's are small */
    float *dx = gpu_upload(test, x, sizeof *x * (size_t)(n_col * most));
    for (int i = n_n_tok - 1; i >= 0; i--)
        for (size_t form = 0; form < sizeof rows / sizeof *rows; form++) {
            int32_t n = n_toks[i];
            float *out = gpu_poisoned(test, (size_t)(n_row * n)),
                  *halves = gpu_poisoned(test, fd_few_f16_bytes(n_col, n) / sizeof(float) + 1);
            fd_matmul in = fd_matmul_of(&matrix, NULL, dx, n, out);
            gpu_must(fd_launch_few_f16(&test->queue, &in, halves, rows[form], &err), &err);
            gpu_download(test, out, found, (size_t)(n_row * n));
            snprintf(name, sizeof name, "few_f16_%lldx%lld_tokens_%d_rows_%d", (long long)n_row, (long long)n_col, n,
                     rows[form]);
            gpu_expect(test, name, worst_of(w, x, found, n_row, n_col, n, -1) <= 1.0);
            if (i == n_n_tok - 1 && form == 0) {
                memcpy(first, found, sizeof *first * (size_t)(n_row * n));
                gpu_expect(test, "few_f16_a_column_left_out_shows",
                           !(worst_of(w, x, found, n_row, n_col, n, n_col - 1) <= 1.0));
            }
            strcat(name, "_bits");
            gpu_expect_equal(test, name, first, found, (size_t)(n_row * n)); /* whatever the form and the others */
        }
    gpu_release(test);
}

void check_few_f16(gpu_test *test) {
    static const int32_t toks[] = {1, 2, 9, 32, 33, 64}, few[] = {1, 3, 8};
    check_shape(test, 300, 1024, toks, 6);
    check_shape(test, 37, 160, toks, 6);
    check_shape(test, 5, 64, few, 3);
    check_shape(test, 1, 96, few, 3);
    check_shape(test, 130, 896, few, 3);
}

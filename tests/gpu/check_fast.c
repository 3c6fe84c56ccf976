/* The fast engine's kernels of rows and weights against binary64 on the host, within what rounding to binary16 explains; its attention is
 * in check_fast_attention.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/rows_f16.h"
#include "model/gguf/quant.h"
#include "numerics/contract.h"
#include "tests/gpu/kernel_check.h"

static void expect_halves(gpu_test *test, const char *name, const float *expected, const float *device, size_t n) {
    float *found = gpu_floats(test, n / 2 + 1), *real = gpu_floats(test, n), *want = gpu_floats(test, n);
    gpu_download(test, device, found, (n + 1) / 2);
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (char *)found + sizeof half * i, sizeof half);
        real[i] = fd_f16_to_f32(half);
        want[i] = gpu_rounded_f16(expected[i]);
    }
    gpu_expect_equal(test, name, want, real, n);
}

static void check_weights(gpu_test *test) {
    for (int i = 0; i < GPU_WEIGHT_TYPES; i++) {
        fd_error err = {0};
        int64_t n_row = 37, n_col = 768;
        float *real;
        char name[64];
        void *file = gpu_random_weight(test, gpu_weight_types[i], n_row, n_col, &real);
        fd_device_matrix matrix = gpu_upload_weight(test, gpu_weight_types[i], n_row, n_col, file);
        float *out = gpu_poisoned(test, (size_t)(n_row * fd_f16_row_stride(&matrix)) / 2);
        gpu_must(fd_launch_dequantise_f16(&test->queue, &matrix, (uint16_t *)(void *)out, &err), &err);
        snprintf(name, sizeof name, "fast_weights_type_%u", (unsigned)gpu_weight_types[i]);
        gpu_expect(test, "fast_weights_rows_of_whole_units_follow_each_other", fd_f16_row_stride(&matrix) == n_col);
        expect_halves(test, name, real, out, (size_t)(n_row * n_col));
    }
    gpu_release(test);
}

static void check_elements(gpu_test *test) {
    enum { ROWS = 5, WIDTH = 900, N = ROWS * WIDTH };
    fd_error err = {0};
    float *x = gpu_floats(test, N), *up = gpu_floats(test, N), *want = gpu_floats(test, N),
          *found = gpu_floats(test, N);
    gpu_fill_uniform(test, x, N), gpu_fill_uniform(test, up, N);
    float *dx = gpu_upload(test, x, sizeof *x * N), *dup = gpu_upload(test, up, sizeof *up * N),
          *real = gpu_poisoned(test, N), *half = gpu_poisoned(test, N / 2);
    fd_f16_out out = {(uint16_t *)(void *)half, real};

    fd_rms_norm norm = {.x = dx, .weight = dup, .eps = 1e-5f, .n_tok = ROWS, .n = WIDTH};
    gpu_must(fd_launch_rms_norm_f16(&test->queue, &norm, out, &err), &err);
    gpu_download(test, real, found, N);
    double worst = 0;
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int i = 0; i < WIDTH; i++) sum += (double)x[r * WIDTH + i] * (double)x[r * WIDTH + i];
        for (int i = 0; i < WIDTH; i++) {
            double y = (double)x[r * WIDTH + i] / sqrt(sum / WIDTH + 1e-5) * (double)up[i];
            double z = fabs((double)found[r * WIDTH + i] - y) / (fabs(y) * 0x1p-21 + 1e-12);
            if (!(z <= worst)) worst = z;
        }
    }
    gpu_expect(test, "fast_norm_is_near_binary64", worst <= 1);
    expect_halves(test, "fast_norm_rounds_what_it_leaves", found, half, N);

    for (int kind = FD_GATE_SILU; kind <= FD_GATE_SWIGLU_CLAMP; kind++) {
        fd_gate gate = {(fd_gate_kind)kind, dx, dup, N, 1.702f, 0.5f};
        gpu_must(fd_launch_gate_f16(&test->queue, &gate, out, &err), &err);
        for (int i = 0; i < N; i++) {
            float g = fd_at_most32(x[i], 0.5f), u = fd_at_least32(fd_at_most32(up[i], 0.5f), -0.5f);
            want[i] = kind == FD_GATE_SILU   ? fd_silu32(x[i]) * up[i]
                      : kind == FD_GATE_GELU ? fd_gelu32(x[i]) * up[i]
                                             : fd_swish32(g, 1.702f) * (u + 1.0f);
        }
        gpu_download(test, real, found, N);
        double off = 0;
        for (int i = 0; i < N; i++) {
            double z = fabs((double)found[i] - (double)want[i]) / (fabs((double)want[i]) * 0x1p-20 + 1e-9);
            if (!(z <= off)) off = z;
        }
        gpu_expect(test, "fast_gate_is_near_the_contract", off <= 1);
        expect_halves(test, "fast_gate_rounds_what_it_leaves", found, half, N);
    }
    gpu_must(fd_launch_to_f16(&test->queue, dx, N, out.half, &err), &err);
    expect_halves(test, "fast_halves", x, half, N);
    gpu_must(fd_launch_from_f16(&test->queue, out.half, N, real, &err), &err);
    gpu_download(test, real, found, N);
    for (int i = 0; i < N; i++) want[i] = gpu_rounded_f16(x[i]);
    gpu_expect_equal(test, "fast_reals", want, found, N);
    gpu_release(test);
}

void check_fast(gpu_test *test) {
    check_fast_attention(test);
    check_fast_turns(test);
    check_weights(test);
    check_elements(test);
}

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/matvec/experts.h"
#include "numerics/contract.h"
#include "tests/gpu/kernel_check.h"

enum { ROWS = 37, EXPERTS = 70, CHOSEN = 5, MOST_OUT = 70, MOST_IN = 512 };

static float x[ROWS * EXPERTS], ids[ROWS * CHOSEN], expected[ROWS * CHOSEN * MOST_OUT], found[ROWS * CHOSEN * MOST_OUT];

static void host_softmax(const float *from, int32_t n, float *to) {
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) max = fmaxf(max, from[i]);
    for (int32_t i = 0; i < n; i++) to[i] = fd_exp32(from[i] - max);
    float sum = fd_sum(to, n);
    for (int32_t i = 0; i < n; i++) to[i] = to[i] / sum;
}

/* The k-th largest by counting what comes before it: another way than the kernel's. */
static void host_top_k(const float *from, float *to) {
    for (int32_t i = 0; i < EXPERTS; i++) {
        int32_t before = 0;
        for (int32_t m = 0; m < EXPERTS; m++) {
            bool nan_m = isnan(from[m]), nan_i = isnan(from[i]);
            bool tie = from[m] == from[i] || (nan_m && nan_i);
            before += from[m] > from[i] || (!nan_m && nan_i) || (tie && m < i);
        }
        if (before < CHOSEN) to[before] = (float)i;
    }
}

static void check_router(gpu_test *test) {
    fd_error err = {0};
    gpu_fill(test, x, ROWS * EXPERTS);
    for (int32_t i = 0; i < EXPERTS; i++) x[i] = 1.0f; /* all equal: the lower ids */
    x[EXPERTS + 3] = NAN, x[EXPERTS + 60] = INFINITY;  /* NaN is never chosen before a number */
    for (int32_t i = 0; i < EXPERTS; i++) x[2 * EXPERTS + i] = NAN;
    float *dx = gpu_upload(test, x, sizeof x), *dids = gpu_poisoned(test, ROWS * CHOSEN),
          *dout = gpu_poisoned(test, ROWS * EXPERTS);
    gpu_must(fd_launch_softmax(&test->queue, dx, ROWS, EXPERTS, dout, &err), &err);
    gpu_download(test, dout, found, ROWS * EXPERTS);
    for (int32_t r = 0; r < ROWS; r++) host_softmax(x + r * EXPERTS, EXPERTS, expected + r * EXPERTS);
    gpu_expect_equal(test, "softmax_of_rows", expected, found, ROWS * EXPERTS);

    fd_top_k top_k = {.x = dx, .n_row = ROWS, .n = EXPERTS, .k = CHOSEN, .ids = dids};
    gpu_must(fd_launch_top_k(&test->queue, &top_k, &err), &err);
    gpu_download(test, dids, found, ROWS * CHOSEN);
    for (int32_t r = 0; r < ROWS; r++) host_top_k(x + r * EXPERTS, ids + r * CHOSEN);
    gpu_expect_equal(test, "top_k_of_rows", ids, found, ROWS * CHOSEN);

    ids[7] = -1.0f, ids[8] = 1.5f, ids[9] = NAN, ids[10] = EXPERTS;
    dids = gpu_upload(test, ids, sizeof ids);
    for (int gating = FD_EXPERTS_GATHER; gating <= FD_EXPERTS_SOFTMAX; gating++) {
        char name[64];
        float scale = gating == FD_EXPERTS_GATHER ? 1.0f : 2.5f;
        fd_expert_weights in = {dx, dids, ROWS, EXPERTS, CHOSEN, gating, scale, dout};
        gpu_must(fd_launch_expert_weights(&test->queue, &in, &err), &err);
        gpu_download(test, dout, found, ROWS * CHOSEN);
        for (int32_t r = 0; r < ROWS; r++) {
            float *w = expected + r * CHOSEN;
            for (int32_t k = 0; k < CHOSEN; k++) {
                float id = ids[r * CHOSEN + k];
                bool named = id >= 0 && id < EXPERTS && id == floorf(id);
                w[k] = named ? x[r * EXPERTS + (int32_t)id] : NAN;
            }
            if (gating == FD_EXPERTS_SOFTMAX) host_softmax(w, CHOSEN, w);
            float sum = fd_sum(w, CHOSEN);
            for (int32_t k = 0; k < CHOSEN; k++) {
                if (gating == FD_EXPERTS_NORMALISED) w[k] = w[k] / sum;
                if (scale != 1.0f) w[k] = w[k] * scale;
            }
        }
        snprintf(name, sizeof name, "expert_weights_gating_%d", gating);
        gpu_expect_equal(test, name, expected, found, ROWS * CHOSEN);
    }
    gpu_release(test);
}

static void check_products(gpu_test *test, uint32_t dtype, int64_t n_out, int64_t n_in, bool each, bool with_bias) {
    enum { N_EXPERT = 4 };
    static float in[ROWS * CHOSEN * MOST_IN], bias[N_EXPERT * MOST_OUT], w_of[ROWS * CHOSEN], sums[ROWS * MOST_OUT];
    char name[96];
    fd_error err = {0};
    float *w;
    void *file = gpu_random_weight(test, dtype, N_EXPERT * n_out, n_in, &w);
    gpu_fill(test, in, (size_t)(ROWS * (each ? CHOSEN : 1) * n_in));
    gpu_fill(test, bias, (size_t)(N_EXPERT * n_out));
    gpu_fill(test, w_of, ROWS * CHOSEN);
    for (int32_t i = 0; i < ROWS * CHOSEN; i++) ids[i] = (float)(gpu_random_bits(test) % N_EXPERT);
    ids[3] = 99.0f;
    for (int32_t i = 0; i < ROWS * CHOSEN; i++)
        for (int64_t o = 0; o < n_out; o++) {
            int64_t row = (int64_t)ids[i] * n_out + o;
            const float *from = in + (each ? i : i / CHOSEN) * n_in;
            float dot = i == 3 ? NAN : fd_dot(w + row * n_in, from, n_in);
            expected[i * n_out + o] = with_bias && i != 3 ? dot + bias[row] : dot;
        }
    size_t n = (size_t)(ROWS * CHOSEN * n_out);
    fd_expert_matmul job = {.weight = gpu_upload_weight(test, dtype, N_EXPERT * n_out, n_in, file),
                            .bias = with_bias ? gpu_upload(test, bias, sizeof bias) : NULL,
                            .n_out = n_out,
                            .x = gpu_upload(test, in, sizeof in),
                            .x_each = each,
                            .ids = gpu_upload(test, ids, sizeof ids),
                            .n_row = ROWS,
                            .k = CHOSEN,
                            .out = gpu_poisoned(test, n)};
    gpu_must(fd_launch_expert_matmul(&test->queue, &job, &err), &err);
    gpu_download(test, job.out, found, n);
    snprintf(name, sizeof name, "expert_matmul_type_%u_%lldx%lld%s%s", dtype, (long long)n_out, (long long)n_in,
             each ? "_each" : "", with_bias ? "_bias" : "");
    gpu_expect_equal(test, name, expected, found, n);

    float *dw = gpu_upload(test, w_of, sizeof w_of), *dsum = gpu_poisoned(test, (size_t)(ROWS * n_out));
    fd_expert_sum sum_of = {job.out, dw, ROWS, n_out, CHOSEN, dsum};
    gpu_must(fd_launch_expert_sum(&test->queue, &sum_of, &err), &err);
    gpu_download(test, dsum, found, (size_t)(ROWS * n_out));
    for (int64_t i = 0; i < ROWS * n_out; i++) {
        float acc = 0.0f;
        for (int32_t k = 0; k < CHOSEN; k++)
            acc = fmaf(w_of[i / n_out * CHOSEN + k], expected[(i / n_out * CHOSEN + k) * n_out + i % n_out], acc);
        sums[i] = acc;
    }
    snprintf(name, sizeof name, "expert_sum_%lld", (long long)n_out);
    gpu_expect_equal(test, name, sums, found, (size_t)(ROWS * n_out));
    gpu_release(test);
}

void check_experts(gpu_test *test) {
    check_router(test);
    for (int i = 0; i < GPU_LAYOUTS; i++) {
        check_products(test, gpu_weight_types[i], 70, 256, false, true);
        check_products(test, gpu_weight_types[i], 33, 512, true, false);
    }
    check_products(test, FD_F32, 5, 70, true, true);
}

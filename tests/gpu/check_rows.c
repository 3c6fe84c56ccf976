#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/embed.h"
#include "kernels/attention/kv_cache.h"
#include "kernels/elementwise/norm.h"
#include "kernels/elementwise/rope.h"
#include "model/graph.h"
#include "numerics/contract.h"
#include "tests/gpu/fused_case.h"
#include "tests/gpu/kernel_check.h"

enum { MOST = 1 << 16 };
static float a[MOST], b[MOST], expected[MOST], found[MOST];

static void check_embed(gpu_test *test, uint32_t dtype, int64_t n_col) {
    enum { N_ROW = 23, N_TOK = 5 };
    static const int32_t tokens[N_TOK] = {22, 0, 7, 7, 13};
    char name[80];
    float *rows;
    fd_error err = {0};
    void *file = gpu_random_weight(test, dtype, N_ROW, n_col, &rows);
    fd_device_matrix table = gpu_upload_weight(test, dtype, N_ROW, n_col, file);
    float *out = gpu_poisoned(test, (size_t)(N_TOK * n_col)), *dtokens = gpu_upload(test, tokens, sizeof tokens);
    gpu_must(fd_launch_embed(&test->queue, &table, (const int32_t *)(const void *)dtokens, N_TOK, out, &err), &err);
    gpu_download(test, out, found, (size_t)(N_TOK * n_col));
    for (int t = 0; t < N_TOK; t++)
        memcpy(expected + t * n_col, rows + tokens[t] * n_col, sizeof *rows * (size_t)n_col);
    snprintf(name, sizeof name, "embed_%s_%lld", fd_dtype_get(dtype)->name, (long long)n_col);
    gpu_expect_equal(test, name, expected, found, (size_t)(N_TOK * n_col));
    gpu_release(test);
}

static void check_norm(gpu_test *test, int32_t n_tok, int64_t n) {
    char name[80];
    fd_error err = {0};
    size_t count = (size_t)(n_tok * n);
    const float eps = 1e-6f;
    gpu_fill(test, a, count);
    gpu_fill(test, b, (size_t)n);
    float *x = gpu_upload(test, a, sizeof *a * count), *w = gpu_upload(test, b, sizeof *b * (size_t)n),
          *out = gpu_poisoned(test, count);
    fd_rms_norm in = {.x = x, .weight = w, .eps = eps, .n_tok = n_tok, .n = n};
    gpu_must(fd_launch_rms_norm(&test->queue, &in, out, &err), &err);
    gpu_download(test, out, found, count);
    for (int32_t t = 0; t < n_tok; t++) host_norm(a + t * n, b, n, eps, expected + t * n);
    snprintf(name, sizeof name, "rms_norm_%d_rows_of_%lld", n_tok, (long long)n);
    gpu_expect_equal(test, name, expected, found, count);
    gpu_release(test);
}

static void check_rope(gpu_test *test, int32_t n_head, int32_t head_dim, int32_t n_rot, bool interleaved, int32_t n_tok,
                       int32_t pos0) {
    enum { N_CTX = 400 };
    static float cosine[N_CTX * 128], sine[N_CTX * 128];
    char name[120];
    fd_error err = {0};
    fd_rope rope = {.n_rot = n_rot, .base = 10000.0, .factor = 1.0};
    int32_t half = n_rot / 2, width = n_head * head_dim;
    size_t count = (size_t)(n_tok * width);
    fd_rope_table(&rope, NULL, 0, N_CTX, cosine, sine);
    gpu_fill(test, a, count);
    float *x = gpu_upload(test, a, sizeof *a * count), *out = gpu_poisoned(test, count),
          *dpos = gpu_upload(test, &pos0, sizeof pos0);
    fd_rope_shape shape = {n_head,
                           head_dim,
                           n_rot,
                           interleaved,
                           gpu_upload(test, cosine, sizeof cosine),
                           gpu_upload(test, sine, sizeof sine)};
    gpu_must(fd_launch_rope(&test->queue, &shape, x, n_tok, (const int32_t *)(const void *)dpos, out, &err), &err);
    gpu_download(test, out, found, count);
    for (int32_t row = 0; row < n_tok * n_head; row++) {
        const float *in = a + row * head_dim, *c = cosine + (pos0 + row / n_head) * half,
                    *s = sine + (pos0 + row / n_head) * half;
        float *to = expected + row * head_dim;
        memcpy(to, in, sizeof *to * (size_t)head_dim);
        for (int32_t i = 0; i < half; i++) {
            int32_t p = interleaved ? 2 * i : i, q = interleaved ? 2 * i + 1 : i + half;
            to[p] = fmaf(in[p], c[i], -(in[q] * s[i]));
            to[q] = fmaf(in[p], s[i], in[q] * c[i]);
        }
    }
    snprintf(name, sizeof name, "rope_%s_%d_heads_of_%d_rot_%d_rows_%d_from_%d", interleaved ? "interleaved" : "half",
             n_head, head_dim, n_rot, n_tok, pos0);
    gpu_expect_equal(test, name, expected, found, count);
    gpu_release(test);
}

static void check_kv_write(gpu_test *test, int32_t n_tok, int32_t pos0, int32_t offset) {
    enum { WIDTH = 48, N_CTX = 20 };
    char name[80];
    fd_error err = {0};
    gpu_fill(test, a, (size_t)(n_tok * WIDTH));
    gpu_fill(test, b, N_CTX * WIDTH);
    memcpy(expected, b, sizeof *b * N_CTX * WIDTH);
    for (int32_t r = 0; r < n_tok; r++)
        if (pos0 + r + offset >= 0 && pos0 + r + offset < N_CTX)
            memcpy(expected + (pos0 + r + offset) * WIDTH, a + r * WIDTH, sizeof *a * WIDTH);
    float *x = gpu_upload(test, a, sizeof *a * (size_t)(n_tok * WIDTH)),
          *cache = gpu_upload(test, b, sizeof *b * N_CTX * WIDTH);
    float *dpos = gpu_upload(test, &pos0, sizeof pos0);
    fd_kv_write in = {x, n_tok, WIDTH, (const int32_t *)(const void *)dpos, offset, false, cache, N_CTX};
    gpu_must(fd_launch_kv_write(&test->queue, &in, &err), &err);
    gpu_download(test, cache, found, N_CTX * WIDTH);
    snprintf(name, sizeof name, "kv_write_%d_rows_from_%d_offset_%d", n_tok, pos0, offset);
    gpu_expect_equal(test, name, expected, found, N_CTX * WIDTH);
    gpu_release(test);
}

/* Every binade of the gate, both signs, the ends of exp's range, infinities and NaN. */
static void check_elementwise(gpu_test *test) {
    fd_error err = {0};
    for (size_t i = 0; i < MOST; i++) a[i] = fd_from_bits32((uint32_t)i << 16 | (gpu_random_bits(test) & 0xffff));
    gpu_fill(test, b, MOST);
    a[0] = INFINITY, a[1] = -INFINITY, a[2] = NAN, a[3] = 88.72284f, a[4] = 88.72285f, a[5] = -103.97208f, a[6] = -0.0f;
    float *x = gpu_upload(test, a, sizeof a), *y = gpu_upload(test, b, sizeof b), *out = gpu_poisoned(test, MOST);
    fd_gate gate = {FD_GATE_SILU, x, y, MOST, 1.702f, 7.0f};
    gpu_must(fd_launch_gate(&test->queue, &gate, out, &err), &err);
    gpu_download(test, out, found, MOST);
    for (size_t i = 0; i < MOST; i++) expected[i] = fd_silu32(a[i]) * b[i];
    gpu_expect_equal(test, "silu_mul_all_binades", expected, found, MOST);
    gpu_must(fd_launch_add(&test->queue, x, y, MOST - 3, out, &err), &err);
    gpu_download(test, out, found, MOST - 3);
    for (size_t i = 0; i < MOST; i++) expected[i] = a[i] + b[i];
    gpu_expect_equal(test, "add_all_binades", expected, found, MOST - 3);
    gate.kind = FD_GATE_GELU;
    gpu_must(fd_launch_gate(&test->queue, &gate, out, &err), &err);
    gpu_download(test, out, found, MOST);
    for (size_t i = 0; i < MOST; i++) expected[i] = fd_gelu32(a[i]) * b[i];
    gpu_expect_equal(test, "gelu_mul_all_binades", expected, found, MOST);
    gate.kind = FD_GATE_SWIGLU_CLAMP;
    gpu_must(fd_launch_gate(&test->queue, &gate, out, &err), &err);
    gpu_download(test, out, found, MOST);
    for (size_t i = 0; i < MOST; i++) {
        float up = fd_at_least32(fd_at_most32(b[i], 7.0f), -7.0f);
        expected[i] = fd_swish32(fd_at_most32(a[i], 7.0f), 1.702f) * (up + 1.0f);
    }
    gpu_expect_equal(test, "swiglu_clamp_all_binades", expected, found, MOST);
    gpu_must(fd_launch_scale(&test->queue, x, 1.7f, MOST, out, &err), &err);
    gpu_download(test, out, found, MOST);
    for (size_t i = 0; i < MOST; i++) expected[i] = a[i] * 1.7f;
    gpu_expect_equal(test, "scale_all_binades", expected, found, MOST);
    gpu_must(fd_launch_softcap(&test->queue, x, 30.0f, MOST, out, &err), &err);
    gpu_download(test, out, found, MOST);
    for (size_t i = 0; i < MOST; i++) expected[i] = fd_softcap32(a[i], 30.0f);
    gpu_expect_equal(test, "softcap_all_binades", expected, found, MOST);
    gpu_release(test);
}

void check_rows(gpu_test *test) {
    static const int64_t widths[] = {64, 96, 256, 172, 7, 896, 1024};
    for (int i = 0; i < GPU_WEIGHT_TYPES; i++)
        for (size_t k = 0; k < sizeof widths / sizeof *widths; k++)
            if (widths[k] % fd_dtype_get(gpu_weight_types[i])->block_elements == 0)
                check_embed(test, gpu_weight_types[i], widths[k]);
    static const int64_t norms[] = {1, 2, 63, 64, 65, 172, 896, 4096, 13000};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        check_norm(test, 1, norms[i]), check_norm(test, 5, norms[i]);
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        check_rope(test, 3, 8, 8, interleaved, 4, 0);
        check_rope(test, 2, 64, 64, interleaved, 3, 17);
        check_rope(test, 2, 128, 96, interleaved, 5, 300);
        check_rope(test, 1, 80, 20, interleaved, 1, 399);
    }
    check_kv_write(test, 3, 0, 0);
    check_kv_write(test, 5, 15, 0);
    check_kv_write(test, 5, 15, 1);
    check_kv_write(test, 3, 0, -1);
    check_elementwise(test);
}

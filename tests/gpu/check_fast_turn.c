/* Fast attention of one row turns q and k on its way: the bits of ROPE's own kernel before it, in every arrangement of
 * pairs, and others where nothing is turned. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_f16.h"
#include "model/graph.h"
#include "tests/gpu/kernel_check.h"

typedef struct turn_case {
    int32_t n_head, n_head_kv, head_dim, n_rot;
    bool interleaved;
} turn_case;

enum { N_CTX = 280 };

static float *random_floats(gpu_test *test, size_t n) {
    float *x = gpu_floats(test, n), *device;
    for (size_t i = 0; i < n; i++) x[i] = (float)(int32_t)gpu_random_bits(test) * 0x1p-30f;
    device = gpu_upload(test, x, sizeof *x * n);
    return device;
}

/* Zeros and what the launch writes; `out` gets the row, `row` the newest rows of K and V as 16-bit integers. */
static void launch(gpu_test *test, fd_attn_f16 in, int32_t pos, float *out, float *row) {
    fd_error err = {0};
    size_t width = (size_t)(in.n_head_kv * in.head_dim);
    gpu_must(fd_launch_attn_decode_f16(&test->queue, &in, &err), &err);
    gpu_download(test, in.out.real, out, (size_t)(in.n_head * in.head_dim));
    gpu_download(test, (const float *)(const void *)(in.cache_k + (size_t)pos * width), row, width / 2);
    gpu_download(test, (const float *)(const void *)(in.cache_v + (size_t)pos * width), row + width / 2, width / 2);
}

static void check_turn(gpu_test *test, const turn_case *c, int32_t pos, bool near) {
    fd_error err = {0};
    char name[160];
    size_t n_q = (size_t)(c->n_head * c->head_dim), width = (size_t)(c->n_head_kv * c->head_dim);
    size_t n_table = (size_t)N_CTX * (size_t)(c->n_rot / 2);
    float *cosine = gpu_floats(test, n_table), *sine = gpu_floats(test, n_table);
    float *expected = gpu_floats(test, n_q), *found = gpu_floats(test, n_q);
    float *row = gpu_floats(test, width), *own = gpu_floats(test, width);
    const fd_attn_f16 heads = {.n_head = c->n_head,
                               .n_head_kv = c->n_head_kv,
                               .n_head_kv_whole = c->n_head_kv,
                               .head_dim = c->head_dim,
                               .n_ctx = N_CTX};
    size_t scratch = fd_attn_decode_f16_scratch(&test->queue, &heads);
    void *zeros = gpu_host(test, scratch);
    fd_rope rope = {.n_rot = c->n_rot, .base = 10000.0, .factor = 1.0};
    fd_rope_table(&rope, NULL, 0, N_CTX, cosine, sine);
    fd_rope_shape q_shape = {.n_head = c->n_head,
                             .head_dim = c->head_dim,
                             .n_rot = c->n_rot,
                             .interleaved = c->interleaved,
                             .cosine = gpu_upload(test, cosine, sizeof *cosine * n_table),
                             .sine = gpu_upload(test, sine, sizeof *sine * n_table)};
    fd_rope_shape k_shape = q_shape;
    k_shape.n_head = c->n_head_kv;
    float *q = random_floats(test, n_q), *k = random_floats(test, width), *v = random_floats(test, width);
    float *q_turned = gpu_poisoned(test, n_q), *k_turned = gpu_poisoned(test, width), *out = gpu_poisoned(test, n_q);
    /* Random bits with small exponents are halves of usual size. */
    size_t n_cache = (size_t)N_CTX * width;
    uint16_t *halves = gpu_host(test, sizeof *halves * n_cache);
    for (size_t i = 0; i < n_cache; i++) halves[i] = (uint16_t)(gpu_random_bits(test) & 0xbbff);
    float *cache_k = gpu_upload(test, halves, sizeof *halves * n_cache),
          *cache_v = gpu_upload(test, halves, sizeof *halves * n_cache);
    float *pos0 = gpu_upload(test, &pos, sizeof pos), *memory = gpu_upload(test, zeros, scratch);
    const int32_t *at = (const int32_t *)(const void *)pos0;
    fd_attn_f16 in = {.n_head = c->n_head,
                      .n_head_kv = c->n_head_kv,
                      .n_head_kv_whole = c->n_head_kv,
                      .head_dim = c->head_dim,
                      .n_tok = 1,
                      .n_ctx = N_CTX,
                      .pos0 = at,
                      .scale = 1.0f / sqrtf((float)c->head_dim),
                      .q = q_turned,
                      .cache_k = (uint16_t *)(void *)cache_k,
                      .cache_v = (uint16_t *)(void *)cache_v,
                      .out.real = out,
                      .short_context = near,
                      .k = k_turned,
                      .v = v,
                      .scratch = memory};
    gpu_must(fd_launch_rope(&test->queue, &q_shape, q, 1, at, q_turned, &err), &err);
    gpu_must(fd_launch_rope(&test->queue, &k_shape, k, 1, at, k_turned, &err), &err);
    launch(test, in, pos, expected, row);
    in.q = q, in.k = k;
    in.q_rope = q_shape, in.k_rope = k_shape;
    launch(test, in, pos, found, own);
    snprintf(name, sizeof name, "fast_decode_turns_%d_of_%d_%s_at_%d%s", c->n_rot, c->head_dim,
             c->interleaved ? "neighbours" : "halves", pos, near ? "_near" : "");
    gpu_expect_equal(test, name, expected, found, n_q);
    gpu_expect_equal(test, "fast_decode_writes_the_turned_key", row, own, width);
    in.q_rope.n_rot = in.k_rope.n_rot = 0;
    launch(test, in, pos, found, own);
    gpu_expect(test, "fast_decode_without_turning_differs", memcmp(expected, found, sizeof *found * n_q) != 0);
    gpu_release(test);
}

void check_fast_turns(gpu_test *test) {
    static const turn_case cases[] = {
        {14, 2, 64, 64, false}, {4, 2, 64, 64, true},  {4, 1, 128, 128, false}, {2, 1, 256, 256, false},
        {4, 2, 64, 32, false},  {4, 2, 64, 24, true},  {4, 2, 64, 20, false},   {4, 2, 64, 12, true},
        {2, 1, 80, 80, false},  {2, 2, 72, 44, false}, {2, 2, 6, 4, false},
    };
    static const int32_t positions[] = {1, 37, 130, 255};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t p = 0; p < sizeof positions / sizeof *positions; p++)
            for (int near = 0; near < 2; near++) check_turn(test, &cases[i], positions[p], near);
}

/* The fast engine's attention against binary64 on the host: within what rounding to binary16 explains, and not within it
 * where a key is missing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_f16.h"
#include "model/gguf/quant.h"
#include "tests/gpu/kernel_check.h"

/* A cache of n values in binary16, and what they are. */
static uint16_t *random_cache(gpu_test *test, float *real, size_t n) {
    uint16_t *half = gpu_host(test, n * sizeof *half);
    gpu_fill_uniform(test, real, n);
    for (size_t i = 0; i < n; i++) half[i] = fd_f32_to_f16(real[i]), real[i] = fd_f16_to_f32(half[i]);
    return half;
}

typedef struct shape {
    int32_t n_head, n_head_kv, head_dim, window;
    float softcap;
    bool sinks;
} shape;

/* One head of one row at `pos`; `bound` gets Σ w|v| of each element: what a relative error of the weights makes. */
static void host_attention(const shape *s, int32_t head, int32_t pos, bool round_q, const float *q, const float *k,
                           const float *v, const float *sinks, double *weights, double *out, double *bound) {
    int32_t first = s->window > 0 && pos >= s->window ? pos - s->window + 1 : 0, d = s->head_dim;
    int64_t stride = (int64_t)s->n_head_kv * d, own = (int64_t)(head / (s->n_head / s->n_head_kv)) * d;
    double max = s->sinks ? (double)sinks[head] : -INFINITY, sum = 0;
    for (int32_t t = first; t <= pos; t++) {
        double dot = 0;
        for (int32_t i = 0; i < d; i++)
            dot += (double)(round_q ? gpu_rounded_f16(q[i]) : q[i]) * (double)k[t * stride + own + i];
        dot /= sqrt((double)d);
        if (s->softcap > 0) dot = (double)s->softcap * tanh(dot / (double)s->softcap);
        weights[t] = dot;
        max = fmax(max, dot);
    }
    for (int32_t t = first; t <= pos; t++) sum += weights[t] = exp(weights[t] - max);
    if (s->sinks) sum += exp((double)sinks[head] - max);
    for (int32_t i = 0; i < d; i++) out[i] = bound[i] = 0;
    for (int32_t t = first; t <= pos; t++)
        for (int32_t i = 0; i < d; i++) {
            double value = (double)v[t * stride + own + i];
            out[i] += weights[t] / sum * value;
            bound[i] += weights[t] / sum * fabs(value);
        }
}

/* Largest |found − expected| / (u·bound) of `rows` rows from position pos0 on. `late`: positions that the host takes
 * each row to be farther on than it is. */
static double worst_of(const shape *s, int32_t rows, int32_t pos0, int32_t late, bool round_q, double u, const float *q,
                       const float *k, const float *v, const float *sinks, const float *found) {
    static double weights[4096];
    double worst = 0;
    double out[FD_ATTENTION_MAX_HEAD_DIM], bound[FD_ATTENTION_MAX_HEAD_DIM];
    for (int32_t r = 0; r < rows; r++)
        for (int32_t head = 0; head < s->n_head; head++) {
            int64_t at = ((int64_t)r * s->n_head + head) * s->head_dim;
            host_attention(s, head, pos0 + r + late, round_q, q + at, k, v, sinks, weights, out, bound);
            for (int32_t i = 0; i < s->head_dim; i++) {
                double z = fabs((double)found[at + i] - out[i]) / (u * bound[i] + 1e-7);
                if (!(z <= worst)) worst = z;
            }
        }
    return worst;
}

/* Binary16 weights: 2^-11 relative each, and as much for the rounded result; sums and exponentials are far below. */
static const double MANY = 0x1p-10, ONE = 0x1p-17;
/* Positions split over blocks: the tensor cores' sums, of which each cuts what is below its largest product's last bits. */
static const double SPLIT = 0x1p-16;

/* The same row with its K and V given beside the caches, whose own row holds NaN: it is written, and the bits stay. */
static void check_writes(gpu_test *test, const shape *s, fd_attn_f16 in, int32_t pos, const float *k, const float *v,
                         const float *expected) {
    fd_error err = {0};
    size_t width = (size_t)(s->n_head_kv * s->head_dim), n_q = (size_t)(s->n_head * s->head_dim);
    float *found = gpu_floats(test, n_q);
    float *dk = gpu_upload(test, k + (size_t)pos * width, sizeof *k * width),
          *dv = gpu_upload(test, v + (size_t)pos * width, sizeof *v * width);
    uint16_t *rows = in.cache_k + (size_t)pos * width;
    gpu_must(fd_cuda_check(cudaMemset(rows, 0xff, sizeof *rows * width), "memset", &err), &err);
    in.k = dk, in.v = dv;
    for (int i = 0; i < 2; i++) {
        gpu_must(fd_launch_attn_decode_f16(&test->queue, &in, &err), &err);
        gpu_download(test, in.out.real, found, n_q);
        gpu_expect_equal(test, i ? "fast_decode_after_it_wrote_a_row" : "fast_decode_writes_its_row", expected, found,
                         n_q);
        in.k = in.v = NULL;
    }
}

static void check_shape(gpu_test *test, const shape *s, int32_t n_tok, int32_t pos0, bool near) {
    char name[192];
    fd_error err = {0};
    int32_t n_ctx = pos0 + n_tok + 3;
    size_t n_q = (size_t)(n_tok * s->n_head * s->head_dim), n_cache = (size_t)(n_ctx * s->n_head_kv * s->head_dim);
    float *q = gpu_floats(test, n_q), *k = gpu_floats(test, n_cache), *v = gpu_floats(test, n_cache);
    float *found = gpu_floats(test, n_q), *again = gpu_floats(test, n_q);
    float *sinks = gpu_floats(test, (size_t)s->n_head);
    uint16_t *k16 = random_cache(test, k, n_cache), *v16 = random_cache(test, v, n_cache);
    gpu_fill_uniform(test, q, n_q);
    /* The key behind the last row's, which nothing may read, looks like that row's first query, so that taking it in
     * shows. */
    const float *last_q = q + n_q - s->n_head * s->head_dim;
    for (int32_t i = 0, behind = (pos0 + n_tok) * s->n_head_kv * s->head_dim; i < s->head_dim; i++) {
        k16[behind + i] = fd_f32_to_f16(last_q[i]);
        k[behind + i] = fd_f16_to_f32(k16[behind + i]);
    }
    for (size_t i = 0; i < n_q; i++) q[i] *= 8; /* weights that differ */
    gpu_fill_uniform(test, sinks, (size_t)s->n_head);
    bool one = n_tok == 1;
    const fd_attn_f16 heads = {.n_head = s->n_head,
                               .n_head_kv = s->n_head_kv,
                               .n_head_kv_whole = s->n_head_kv,
                               .head_dim = s->head_dim,
                               .n_ctx = n_ctx};
    size_t scratch = fd_attn_decode_f16_scratch(&test->queue, &heads);
    char *zeros = gpu_host(test, scratch);
    float *dq = gpu_upload(test, q, sizeof *q * n_q), *dk = gpu_upload(test, k16, sizeof *k16 * n_cache),
          *dv = gpu_upload(test, v16, sizeof *v16 * n_cache),
          *dsinks = gpu_upload(test, sinks, sizeof *sinks * (size_t)s->n_head);
    float *dout = gpu_poisoned(test, n_q), *dpos = gpu_upload(test, &pos0, sizeof pos0),
          *dscratch = gpu_upload(test, zeros, scratch);
    fd_attn_f16 in = {.n_head = s->n_head,
                      .n_head_kv = s->n_head_kv,
                      .n_head_kv_whole = s->n_head_kv,
                      .head_dim = s->head_dim,
                      .n_tok = n_tok,
                      .n_ctx = n_ctx,
                      .pos0 = (const int32_t *)(const void *)dpos,
                      .window = s->window,
                      .scale = 1.0f / sqrtf((float)s->head_dim),
                      .softcap = s->softcap,
                      .sinks = s->sinks ? dsinks : NULL,
                      .q = dq,
                      .cache_k = (uint16_t *)(void *)dk,
                      .cache_v = (uint16_t *)(void *)dv,
                      .out.real = dout,
                      .short_context = near,
                      .scratch = dscratch};
    snprintf(name, sizeof name, "fast_attention_%d_heads_over_%d_of_%d_rows_%d_from_%d_window_%d%s%s%s", s->n_head,
             s->n_head_kv, s->head_dim, n_tok, pos0, s->window, s->softcap > 0 ? "_softcap" : "",
             s->sinks ? "_sinks" : "", near ? "_near" : "");
    for (int i = 0; i < 2; i++) { /* the second launch finds the counters the first one left */
        gpu_must(one ? fd_launch_attn_decode_f16(&test->queue, &in, &err)
                     : fd_launch_attn_fused_f16(&test->queue, &in, &err),
                 &err);
        gpu_download(test, dout, i ? again : found, n_q);
    }
    double u = one ? (near && s->head_dim % 8 == 0 ? ONE : SPLIT) : MANY,
           z = worst_of(s, n_tok, pos0, 0, !one, u, q, k, v, sinks, found);
    if (!(z <= 1) || getenv("SHOWZ")) printf("  %s: %.3g times the bound\n", name, z);
    gpu_expect(test, name, z <= 1);
    gpu_expect_equal(test, "fast_attention_twice_the_same_bits", found, again, n_q);
    if (one) check_writes(test, s, in, pos0, k, v, found);
    double late = worst_of(s, n_tok, pos0, 1, !one, u, q, k, v, sinks, found);
    gpu_expect(test, "fast_attention_without_the_newest_key_is_beyond_the_bound", late > 1);
    gpu_release(test);
}

static void check_attention_shapes(gpu_test *test) {
    static const shape shapes[] = {
        {2, 2, 8, 0, 0, false},   {4, 2, 64, 0, 0, false},  {14, 2, 64, 0, 0, false},  {8, 2, 128, 0, 0, false},
        {4, 1, 80, 0, 0, false},  {2, 2, 6, 0, 0, false},   {2, 1, 256, 0, 0, false},  {20, 1, 32, 0, 0, false},
        {4, 2, 64, 16, 0, false}, {4, 2, 128, 1, 0, false}, {2, 1, 256, 70, 2, false}, {4, 2, 64, 0, 2, false},
        {4, 2, 64, 128, 0, true}, {4, 1, 96, 0, 30, true},  {9, 1, 112, 7, 0, true},
    };
    /* Near the beginning, registers hold 64, 128 or all 256 positions at once, by the head's size. */
    static const int32_t rows[][2] = {{1, 0},   {1, 63}, {1, 64}, {1, 127}, {1, 128}, {1, 200}, {1, 255},
                                      {1, 300}, {5, 0},  {70, 0}, {64, 64}, {3, 299}, {130, 5}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            check_shape(test, &shapes[i], rows[k][0], rows[k][1], false);
            if (rows[k][0] == 1 && rows[k][1] < FD_ATTENTION_SHORT_CONTEXT)
                check_shape(test, &shapes[i], rows[k][0], rows[k][1], true);
        }
    /* More tiles than a head has blocks, so that a warp's stages are filled several times. */
    static const int32_t widths[] = {16, 128, 256, 6};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int32_t window = 0; window <= 1000; window += 1000)
            check_shape(test, &(shape){.n_head = 64, .n_head_kv = 64, .head_dim = widths[i], .window = window}, 1, 2000,
                        false);
    check_shape(test, &(shape){.n_head = 128, .n_head_kv = 16, .head_dim = 64}, 1, 3500, false);
}

/* Layers of two shapes in turns, which share their scratch, as a model's do: the bits that each has in scratch of its own. */
static void check_shared_scratch(gpu_test *test) {
    enum { POS = 700, N_CTX = POS + 1, MOST_Q = 16 * 64, MOST_CACHE = N_CTX * 4 * 128 };
    static const shape shapes[2] = {{16, 2, 64, 0, 0, false}, {4, 4, 128, 0, 0, false}};
    const int32_t pos = POS;
    fd_error err = {0};
    float *q = gpu_floats(test, MOST_Q), *k = gpu_floats(test, MOST_CACHE), *v = gpu_floats(test, MOST_CACHE);
    float *alone = gpu_floats(test, MOST_Q), *found = gpu_floats(test, MOST_Q);
    uint16_t *k16 = random_cache(test, k, MOST_CACHE), *v16 = random_cache(test, v, MOST_CACHE);
    gpu_fill_uniform(test, q, MOST_Q);
    float *dq = gpu_upload(test, q, sizeof *q * MOST_Q), *dk = gpu_upload(test, k16, sizeof *k16 * MOST_CACHE),
          *dv = gpu_upload(test, v16, sizeof *v16 * MOST_CACHE), *dpos = gpu_upload(test, &pos, sizeof pos);
    size_t most = 0;
    fd_attn_f16 in[2];
    for (int i = 0; i < 2; i++) {
        const shape *s = &shapes[i];
        in[i] = (fd_attn_f16){.n_head = s->n_head,
                              .n_head_kv = s->n_head_kv,
                              .n_head_kv_whole = s->n_head_kv,
                              .head_dim = s->head_dim,
                              .n_tok = 1,
                              .n_ctx = N_CTX,
                              .pos0 = (const int32_t *)(const void *)dpos,
                              .scale = 1.0f,
                              .q = dq,
                              .cache_k = (uint16_t *)(void *)dk,
                              .cache_v = (uint16_t *)(void *)dv};
        const size_t bytes = fd_attn_decode_f16_scratch(&test->queue, &in[i]);
        if (bytes > most) most = bytes;
    }
    char *zeros = gpu_host(test, most);
    float *shared = gpu_upload(test, zeros, most);
    for (int turn = 0; turn < 4; turn++) {
        fd_attn_f16 *one = &in[turn % 2];
        const size_t n = (size_t)(one->n_head * one->head_dim);
        one->scratch = gpu_upload(test, zeros, most);
        one->out.real = gpu_poisoned(test, n);
        gpu_must(fd_launch_attn_decode_f16(&test->queue, one, &err), &err);
        gpu_download(test, one->out.real, alone, n);
        one->scratch = shared;
        one->out.real = gpu_poisoned(test, n);
        gpu_must(fd_launch_attn_decode_f16(&test->queue, one, &err), &err);
        gpu_download(test, one->out.real, found, n);
        gpu_expect_equal(test, "fast_decode_after_a_layer_of_another_shape", alone, found, n);
    }
    gpu_release(test);
}

void check_fast_attention(gpu_test *test) {
    check_attention_shapes(test);
    check_shared_scratch(test);
}

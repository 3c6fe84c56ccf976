/* Attention's three ops. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/attention/attention.h"
#include "numerics/contract.h"
#include "tests/gpu/host_attention.h"
#include "tests/gpu/kernel_check.h"

/* What some architectures add to the plain form: a window and a softcap of scores, a sink a head. */
typedef struct extras {
    int32_t window;
    float softcap;
    bool sinks;
} extras;

/* The plain scores of one row become those of a window and a softcap. */
static void limit_scores(int32_t n_head, int32_t pos, int32_t n_kv, extras e, float *scores) {
    for (int32_t i = 0; i < n_head * n_kv; i++) {
        int32_t t = i % n_kv;
        if (t <= pos && e.softcap > 0) scores[i] = fd_softcap32(scores[i], e.softcap);
        if (e.window > 0 && t <= pos - e.window) scores[i] = -INFINITY;
    }
}

/* Softmax with one more score a head that no position has. */
static void host_softmax_sinks(int32_t n_head, const float *scores, int32_t pos, int32_t n_kv, const float *sinks,
                               float *weights) {
    for (int32_t h = 0; h < n_head; h++) {
        const float *s = scores + (size_t)(h * n_kv);
        float *w = weights + (size_t)(h * n_kv), max = sinks[h];
        memset(w, 0, sizeof *w * (size_t)n_kv);
        for (int32_t t = 0; t <= pos; t++) max = fmaxf(max, s[t]);
        for (int32_t t = 0; t <= pos; t++) w[t] = fd_exp32(s[t] - max);
        float sum = fd_sum(w, pos + 1) + fd_exp32(sinks[h] - max);
        for (int32_t t = 0; t <= pos; t++) w[t] = w[t] / sum;
    }
}

static void check_ops(gpu_test *test, heads h, int32_t n_tok, int32_t pos0, int32_t spare, extras e) {
    char name[192], what[128];
    fd_error err = {0};
    int32_t n_kv = pos0 + n_tok + spare; /* room beyond the batch, as in the decode step */
    size_t n_q = (size_t)(n_tok * h.n_head * h.head_dim), n_s = (size_t)n_tok * (size_t)(h.n_head * n_kv);
    size_t n_cache = (size_t)n_kv * (size_t)(h.n_head_kv * h.head_dim);
    const float scale = 1.0f / sqrtf((float)h.head_dim);
    float *q = gpu_floats(test, n_q), *k = gpu_floats(test, n_cache), *v = gpu_floats(test, n_cache),
          *scores = gpu_floats(test, n_s), *weights = gpu_floats(test, n_s);
    float *out = gpu_floats(test, n_q), *found = gpu_floats(test, n_s > n_q ? n_s : n_q);
    float *sinks = gpu_floats(test, (size_t)h.n_head);
    gpu_fill(test, q, n_q), gpu_fill(test, k, n_cache), gpu_fill(test, v, n_cache);
    gpu_fill(test, sinks, (size_t)h.n_head);
    host_round_cached(h, k, (int64_t)n_cache), host_round_cached(h, v, (int64_t)n_cache);
    for (int32_t t = 0; t < n_tok; t++) {
        size_t at = (size_t)t * (size_t)(h.n_head * n_kv), row = (size_t)(t * h.n_head * h.head_dim);
        host_scores(h, q + row, k, pos0 + t, n_kv, scale, scores + at);
        limit_scores(h.n_head, pos0 + t, n_kv, e, scores + at);
        if (e.sinks)
            host_softmax_sinks(h.n_head, scores + at, pos0 + t, n_kv, sinks, weights + at);
        else
            host_softmax(h.n_head, scores + at, pos0 + t, n_kv, weights + at);
        host_mix(h, weights + at, v, pos0 + t, n_kv, out + row);
    }
    float *dq = gpu_upload(test, q, sizeof *q * n_q);
    void *dk = gpu_upload_cache(test, k, n_cache, h.halves), *dv = gpu_upload_cache(test, v, n_cache, h.halves);
    float *dscores = gpu_poisoned(test, n_s), *dweights = gpu_poisoned(test, n_s), *dout = gpu_poisoned(test, n_q);
    float *dpos = gpu_upload(test, &pos0, sizeof pos0);
    float *dsinks = gpu_upload(test, sinks, sizeof *sinks * (size_t)h.n_head);
    fd_attention shape = {.n_head = h.n_head,
                          .n_head_kv = h.n_head_kv,
                          .head_dim = h.head_dim,
                          .n_tok = n_tok,
                          .n_kv = n_kv,
                          .pos0 = (const int32_t *)(const void *)dpos,
                          .window = e.window,
                          .softcap = e.softcap,
                          .halves = h.halves,
                          .sinks = e.sinks ? dsinks : NULL};
    gpu_must(fd_launch_attn_scores(&test->queue, &shape, dq, dk, scale, dscores, &err), &err);
    gpu_must(fd_launch_attn_softmax(&test->queue, &shape, dscores, dweights, &err), &err);
    gpu_must(fd_launch_attn_mix(&test->queue, &shape, dweights, dv, dout, &err), &err);
    snprintf(what, sizeof what, "%d_heads_over_%d_of_%d_rows_%d_from_%d_room_%d_window_%d%s%s%s", h.n_head, h.n_head_kv,
             h.head_dim, n_tok, pos0, n_kv, e.window, e.softcap > 0 ? "_softcap" : "", e.sinks ? "_sinks" : "",
             h.halves ? "_halves" : "");
    snprintf(name, sizeof name, "attn_scores_%s", what);
    gpu_download(test, dscores, found, n_s);
    gpu_expect_equal(test, name, scores, found, n_s);
    snprintf(name, sizeof name, "attn_softmax_%s", what);
    gpu_download(test, dweights, found, n_s);
    gpu_expect_equal(test, name, weights, found, n_s);
    snprintf(name, sizeof name, "attn_mix_%s", what);
    gpu_download(test, dout, found, n_q);
    gpu_expect_equal(test, name, out, found, n_q);
    dscores = gpu_poisoned(test, n_s), dweights = gpu_poisoned(test, n_s), dout = gpu_poisoned(test, n_q);
    shape.causal_only = true;
    gpu_must(fd_launch_attn_scores(&test->queue, &shape, dq, dk, scale, dscores, &err), &err);
    gpu_must(fd_launch_attn_softmax(&test->queue, &shape, dscores, dweights, &err), &err);
    gpu_must(fd_launch_attn_mix(&test->queue, &shape, dweights, dv, dout, &err), &err);
    snprintf(name, sizeof name, "attn_mix_of_what_is_seen_alone_%s", what);
    gpu_download(test, dout, found, n_q);
    gpu_expect_equal(test, name, out, found, n_q);
    gpu_release(test);
}

static void check_shapes(gpu_test *test, bool halves) {
    static const heads shapes[] = {{2, 2, 8}, {4, 2, 64}, {7, 1, 64}, {4, 1, 128}, {2, 1, 80}, {2, 2, 6}, {2, 1, 256}};
    static const int32_t n_past[] = {0, 62, 63, 64, 299};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof n_past / sizeof *n_past; k++) {
            heads h = shapes[i];
            h.halves = halves;
            check_ops(test, h, 1, n_past[k], k == 1 ? 37 : 0, (extras){0});
            if (k < 2 || i % 2 == 0) check_ops(test, h, k == 0 ? 70 : 5, n_past[k], 0, (extras){0});
            check_ops(test, h, 5, n_past[k], 3, (extras){.window = 16});
            check_ops(test, h, 3, n_past[k], 0, (extras){.softcap = 50.0f});
            check_ops(test, h, 3, n_past[k], 0, (extras){.window = 1, .softcap = 2.0f, .sinks = true});
            check_ops(test, h, 2, n_past[k], 5, (extras){.sinks = true});
        }
    /* Enough rows for a warp each in softmax, and for tiles of rows whose first and last see other blocks. */
    check_ops(test, (heads){8, 2, 64, halves}, 150, 0, 3, (extras){0});
    check_ops(test, (heads){16, 2, 128, halves}, 70, 130, 0, (extras){.window = 16, .sinks = true});
    check_ops(test, (heads){12, 12, 12, halves}, 129, 700, 1, (extras){.softcap = 20.0f});
}

void check_attention(gpu_test *test) {
    check_shapes(test, false);
    check_shapes(test, true);
}

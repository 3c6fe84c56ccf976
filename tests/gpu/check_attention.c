#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/attention.h"
#include "model/graph.h"
#include "numerics/contract.h"
#include "tests/gpu/kernel_check.h"

/* ---- the contract on the host: row `t` of a batch, all heads ---- */

typedef struct heads {
    int32_t n_head, n_head_kv, head_dim;
} heads;

static void host_scores(heads h, const float *q, const float *cache, int32_t own, int32_t n_kv, float scale,
                        float *out) {
    for (int32_t head = 0; head < h.n_head; head++)
        for (int32_t p = 0; p < n_kv; p++) {
            const float *k = cache + ((int64_t)p * h.n_head_kv + head / (h.n_head / h.n_head_kv)) * h.head_dim;
            out[head * n_kv + p] = p <= own ? fd_dot(q + head * h.head_dim, k, h.head_dim) * scale : -INFINITY;
        }
}

static void host_softmax(int32_t n_head, const float *scores, int32_t own, int32_t n_kv, float *out) {
    for (int32_t head = 0; head < n_head; head++) {
        const float *s = scores + head * n_kv;
        float *w = out + head * n_kv, max = -INFINITY;
        for (int32_t p = 0; p <= own; p++) max = fmaxf(max, s[p]);
        for (int32_t p = 0; p <= own; p++) w[p] = fd_exp32(s[p] - max);
        float sum = fd_sum(w, own + 1);
        for (int32_t p = 0; p < n_kv; p++) w[p] = p <= own ? w[p] / sum : 0.0f;
    }
}

static void host_mix(heads h, const float *weights, const float *cache, int32_t own, int32_t n_kv, float *out) {
    for (int32_t head = 0; head < h.n_head; head++)
        for (int32_t d = 0; d < h.head_dim; d++) {
            const float *v = cache + (int64_t)(head / (h.n_head / h.n_head_kv)) * h.head_dim + d;
            float total = 0.0f;
            for (int32_t block = 0; block <= own; block += 64) {
                float acc = 0.0f;
                for (int32_t p = block; p <= own && p < block + 64; p++)
                    acc = fmaf(weights[head * n_kv + p], v[(int64_t)p * h.n_head_kv * h.head_dim], acc);
                total = total + acc;
            }
            out[head * h.head_dim + d] = total;
        }
}

/* ---- the three ops ---- */

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
    float *dq = gpu_upload(test, q, sizeof *q * n_q), *dk = gpu_upload(test, k, sizeof *k * n_cache),
          *dv = gpu_upload(test, v, sizeof *v * n_cache);
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
                          .sinks = e.sinks ? dsinks : NULL};
    gpu_must(fd_launch_attn_scores(&test->queue, &shape, dq, dk, scale, dscores, &err), &err);
    gpu_must(fd_launch_attn_softmax(&test->queue, &shape, dscores, dweights, &err), &err);
    gpu_must(fd_launch_attn_mix(&test->queue, &shape, dweights, dv, dout, &err), &err);
    snprintf(what, sizeof what, "%d_heads_over_%d_of_%d_rows_%d_from_%d_room_%d_window_%d%s%s", h.n_head, h.n_head_kv,
             h.head_dim, n_tok, pos0, n_kv, e.window, e.softcap > 0 ? "_softcap" : "", e.sinks ? "_sinks" : "");
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

void check_attention(gpu_test *test) {
    static const heads shapes[] = {{2, 2, 8}, {4, 2, 64}, {7, 1, 64}, {4, 1, 128}, {2, 1, 80}, {2, 2, 6}, {2, 1, 256}};
    static const int32_t n_past[] = {0, 62, 63, 64, 299};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof n_past / sizeof *n_past; k++) {
            check_ops(test, shapes[i], 1, n_past[k], k == 1 ? 37 : 0, (extras){0});
            if (k < 2 || i % 2 == 0) check_ops(test, shapes[i], k == 0 ? 70 : 5, n_past[k], 0, (extras){0});
            check_ops(test, shapes[i], 5, n_past[k], 3, (extras){.window = 16});
            check_ops(test, shapes[i], 3, n_past[k], 0, (extras){.softcap = 50.0f});
            check_ops(test, shapes[i], 3, n_past[k], 0, (extras){.window = 1, .softcap = 2.0f, .sinks = true});
            check_ops(test, shapes[i], 2, n_past[k], 5, (extras){.sinks = true});
        }
    /* Enough rows for a warp each in softmax, and for tiles of rows whose first and last see other blocks. */
    check_ops(test, (heads){8, 2, 64}, 150, 0, 3, (extras){0});
    check_ops(test, (heads){16, 2, 128}, 70, 130, 0, (extras){.window = 16, .sinks = true});
    check_ops(test, (heads){12, 12, 12}, 129, 700, 1, (extras){.softcap = 20.0f});
}

/* ---- the decode step's kernels: positions one after the other, RoPE and cache writes included ---- */

static void turn(const fd_rope_shape *host, const float *x, int32_t pos, float *to) {
    int32_t half = host->n_rot / 2;
    const float *c = host->cosine + pos * half, *s = host->sine + pos * half;
    memcpy(to, x, sizeof *to * (size_t)(host->n_head * host->head_dim));
    for (int32_t head = 0; head < host->n_head; head++)
        for (int32_t i = 0; i < half; i++) {
            int32_t p = head * host->head_dim + (host->interleaved ? 2 * i : i);
            int32_t q = head * host->head_dim + (host->interleaved ? 2 * i + 1 : i + half);
            to[p] = fmaf(x[p], c[i], -(x[q] * s[i]));
            to[q] = fmaf(x[p], s[i], x[q] * c[i]);
        }
}

/* What a kept [n_head, n_ctx] holds: n of each row written, the rest as it was poisoned. */
static void keep_rows(int32_t n_head, int32_t n_ctx, int32_t n, const float *compact, float *rows) {
    for (int32_t i = 0; i < n_head * n_ctx; i++)
        rows[i] = i % n_ctx < n ? compact[i / n_ctx * n + i % n_ctx] : (float)NAN;
}

static void check_decode(gpu_test *test, heads h, bool interleaved, int32_t n_rot, int32_t n_ctx,
                         const int32_t *positions, int n_position, bool overlap) {
    char name[160];
    fd_error err = {0};
    fd_launch_context queue = test->queue;
    queue.overlap = overlap;
    int32_t width_q = h.n_head * h.head_dim, width_kv = h.n_head_kv * h.head_dim;
    size_t n_cache = (size_t)n_ctx * (size_t)width_kv, n_table = (size_t)n_ctx * (size_t)(n_rot / 2);
    float *q = gpu_floats(test, (size_t)width_q), *kv = gpu_floats(test, (size_t)(2 * width_kv)),
          *turned = gpu_floats(test, (size_t)width_q);
    float *cosine = gpu_floats(test, n_table), *sine = gpu_floats(test, n_table), *k = gpu_floats(test, n_cache),
          *v = gpu_floats(test, n_cache);
    float *scores = gpu_floats(test, (size_t)(h.n_head * n_ctx)),
          *weights = gpu_floats(test, (size_t)(h.n_head * n_ctx));
    float *out = gpu_floats(test, (size_t)width_q),
          *found = gpu_floats(test, n_cache > (size_t)width_q ? n_cache : (size_t)width_q);
    fd_rope rope = {.n_rot = n_rot, .base = 10000.0, .factor = 1.0};
    fd_rope_table(&rope, NULL, 0, n_ctx, cosine, sine);
    gpu_fill(test, k, n_cache), gpu_fill(test, v, n_cache);
    fd_rope_shape host_q = {h.n_head, h.head_dim, n_rot, interleaved, cosine, sine}, host_k = host_q;
    host_k.n_head = h.n_head_kv;
    size_t scratch = fd_attn_decode_scratch(h.n_head, h.n_head_kv, h.head_dim, n_ctx);
    float *zeros = gpu_floats(test, scratch / sizeof(float) + 1);
    fd_attn_decode in = {.n_head = h.n_head, .n_head_kv = h.n_head_kv, .head_dim = h.head_dim, .n_ctx = n_ctx};
    in.q_rope = host_q, in.k_rope = host_k;
    in.q_rope.cosine = in.k_rope.cosine = gpu_upload(test, cosine, sizeof *cosine * n_table);
    in.q_rope.sine = in.k_rope.sine = gpu_upload(test, sine, sizeof *sine * n_table);
    in.cache_k = gpu_upload(test, k, sizeof *k * n_cache), in.cache_v = gpu_upload(test, v, sizeof *v * n_cache);
    in.scale = 1.0f / sqrtf((float)h.head_dim);
    in.scratch = gpu_upload(test, zeros, scratch);
    in.out = gpu_poisoned(test, (size_t)width_q);
    size_t n_scores = (size_t)(h.n_head * n_ctx);
    float *rows = gpu_floats(test, n_scores), *row_found = gpu_floats(test, n_scores);
    float *dq_out = gpu_poisoned(test, (size_t)width_q), *dk_out = gpu_poisoned(test, (size_t)width_kv);
    for (int i = 0; i < n_position; i++) {
        int32_t pos = positions[i];
        gpu_fill(test, q, (size_t)width_q), gpu_fill(test, kv, (size_t)(2 * width_kv));
        turn(&host_q, q, pos, turned);
        turn(&host_k, kv, pos, k + (size_t)pos * (size_t)width_kv);
        memcpy(v + (size_t)pos * (size_t)width_kv, kv + width_kv, sizeof *v * (size_t)width_kv);
        host_scores(h, turned, k, pos, pos + 1, in.scale, scores);
        host_softmax(h.n_head, scores, pos, pos + 1, weights);
        host_mix(h, weights, v, pos, pos + 1, out);
        float *dpos = gpu_upload(test, &pos, sizeof pos), *dq = gpu_upload(test, q, sizeof *q * (size_t)width_q);
        float *dk = gpu_upload(test, kv, sizeof *kv * (size_t)width_kv),
              *dv = gpu_upload(test, kv + width_kv, sizeof *kv * (size_t)width_kv);
        in.pos = (const int32_t *)(const void *)dpos, in.q = dq, in.k = dk, in.v = dv;
        /* The second launch keeps what it makes on the way; the third is one kernel, where it may be. */
        for (int twice = 0; twice < (pos < FD_ATTENTION_SHORT_CONTEXT ? 3 : 2); twice++) {
            in.short_context = twice == 2;
            in.q_out = twice == 0 ? NULL : dq_out, in.k_out = twice == 0 ? NULL : dk_out;
            in.scores_out = twice == 0 ? NULL : gpu_poisoned(test, n_scores);
            in.weights_out = twice == 0 ? NULL : gpu_poisoned(test, n_scores);
            gpu_must(fd_launch_attn_decode(&queue, &in, &err), &err);
            gpu_download(test, in.out, found, (size_t)width_q);
            snprintf(name, sizeof name, "decode_%d_heads_over_%d_of_%d_at_%d_of_%d_launch_%d", h.n_head, h.n_head_kv,
                     h.head_dim, pos, n_ctx, twice);
            gpu_expect_equal(test, name, out, found, (size_t)width_q);
            if (!in.q_out) continue;
            gpu_download(test, in.q_out, found, (size_t)width_q);
            gpu_expect_equal(test, "decode_keeps_q_after_rope", turned, found, (size_t)width_q);
            gpu_download(test, in.k_out, found, (size_t)width_kv);
            gpu_expect_equal(test, "decode_keeps_k_after_rope", k + (size_t)pos * (size_t)width_kv, found,
                             (size_t)width_kv);
            keep_rows(h.n_head, n_ctx, pos + 1, scores, rows);
            gpu_download(test, in.scores_out, row_found, n_scores);
            gpu_expect_equal(test, "decode_keeps_scores_and_writes_no_further", rows, row_found, n_scores);
            keep_rows(h.n_head, n_ctx, pos + 1, weights, rows);
            gpu_download(test, in.weights_out, row_found, n_scores);
            gpu_expect_equal(test, "decode_keeps_weights_and_writes_no_further", rows, row_found, n_scores);
        }
        gpu_download(test, in.cache_k, found, n_cache);
        gpu_expect_equal(test, "decode_writes_its_key_and_no_other", k, found, n_cache);
        gpu_download(test, in.cache_v, found, n_cache);
        gpu_expect_equal(test, "decode_writes_its_value_and_no_other", v, found, n_cache);
    }
    gpu_release(test);
}

void check_attention_decode(gpu_test *test) {
    static const int32_t positions[] = {0, 62, 63, 64, 65, 128, 298, 299};
    static const heads shapes[] = {{8, 4, 8},
                                   {14, 2, 64},
                                   {4, 4, 64},
                                   {8, 2, 128},
                                   {2, 1, 80},
                                   {2, 2, 6},
                                   {2, 1, 256},
                                   /* More heads than a block computes of a key that they share. */
                                   {20, 1, 64},
                                   {9, 1, 128},
                                   {12, 2, 256},
                                   {3, 1, 7}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_decode(test, shapes[i], i % 2 == 0, shapes[i].head_dim / 4 * 2, 300, positions, 8, i % 2 == 0);
    /* More chunks than the grids have blocks: blocks take several. */
    static const int32_t late[] = {0, 4000, 9999};
    check_decode(test, (heads){2, 1, 16}, false, 16, 10000, late, 3, true);
    /* More chunks than the last kernel holds at once; the ends of the softmax's tiles; and its blocks without clusters. */
    static const int32_t last[] = {1023, 1024, 4095, 4096, 8192, 12287, 12288, 19999};
    check_decode(test, (heads){2, 1, 16}, false, 16, 20000, last, 8, true);
    const bool has_clusters = test->queue.has_clusters;
    test->queue.has_clusters = false;
    check_decode(test, (heads){2, 1, 16}, false, 16, 20000, last, 8, true);
    test->queue.has_clusters = has_clusters;
    /* The softmax's partial sums come round its cluster twice, and three times. */
    static const int32_t round[] = {32767, 32768, 65535, 69999};
    check_decode(test, (heads){2, 1, 16}, false, 16, 70000, round, 4, true);
    /* Real heads, more chunks than multiprocessors several times over. */
    static const int32_t far[] = {8192, 32767};
    check_decode(test, (heads){8, 2, 128}, false, 128, 32768, far, 2, true);
}

/* The decode step's kernels: positions one after the other, RoPE and cache writes included. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/attention/attention.h"
#include "model/graph.h"
#include "numerics/contract.h"
#include "tests/gpu/host_attention.h"
#include "tests/gpu/kernel_check.h"

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
          *turned = gpu_floats(test, (size_t)width_q), *turned_key = gpu_floats(test, (size_t)width_kv);
    float *cosine = gpu_floats(test, n_table), *sine = gpu_floats(test, n_table), *k = gpu_floats(test, n_cache),
          *v = gpu_floats(test, n_cache);
    float *scores = gpu_floats(test, (size_t)(h.n_head * n_ctx)),
          *weights = gpu_floats(test, (size_t)(h.n_head * n_ctx));
    float *out = gpu_floats(test, (size_t)width_q),
          *found = gpu_floats(test, n_cache > (size_t)width_q ? n_cache : (size_t)width_q);
    fd_rope rope = {.n_rot = n_rot, .base = 10000.0, .factor = 1.0};
    fd_rope_table(&rope, NULL, 0, n_ctx, cosine, sine);
    gpu_fill(test, k, n_cache), gpu_fill(test, v, n_cache);
    host_round_cached(h, k, (int64_t)n_cache), host_round_cached(h, v, (int64_t)n_cache);
    fd_rope_shape host_q = {h.n_head, h.head_dim, n_rot, interleaved, cosine, sine}, host_k = host_q;
    host_k.n_head = h.n_head_kv;
    size_t scratch = fd_attn_decode_scratch(h.n_head, h.n_head_kv, h.head_dim, n_ctx);
    float *zeros = gpu_floats(test, scratch / sizeof(float) + 1);
    fd_attn_decode in = {.n_head = h.n_head, .n_head_kv = h.n_head_kv, .head_dim = h.head_dim, .n_ctx = n_ctx};
    in.q_rope = host_q, in.k_rope = host_k;
    in.q_rope.cosine = in.k_rope.cosine = gpu_upload(test, cosine, sizeof *cosine * n_table);
    in.q_rope.sine = in.k_rope.sine = gpu_upload(test, sine, sizeof *sine * n_table);
    in.cache_k = gpu_upload_cache(test, k, n_cache, h.halves),
    in.cache_v = gpu_upload_cache(test, v, n_cache, h.halves);
    in.halves = h.halves;
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
        turn(&host_k, kv, pos, turned_key);
        memcpy(k + (size_t)pos * (size_t)width_kv, turned_key, sizeof *k * (size_t)width_kv);
        memcpy(v + (size_t)pos * (size_t)width_kv, kv + width_kv, sizeof *v * (size_t)width_kv);
        host_round_cached(h, k + (size_t)pos * (size_t)width_kv, width_kv);
        host_round_cached(h, v + (size_t)pos * (size_t)width_kv, width_kv);
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
            snprintf(name, sizeof name, "decode_%d_heads_over_%d_of_%d_at_%d_of_%d_launch_%d%s", h.n_head, h.n_head_kv,
                     h.head_dim, pos, n_ctx, twice, h.halves ? "_halves" : "");
            gpu_expect_equal(test, name, out, found, (size_t)width_q);
            if (!in.q_out) continue;
            gpu_download(test, in.q_out, found, (size_t)width_q);
            gpu_expect_equal(test, "decode_keeps_q_after_rope", turned, found, (size_t)width_q);
            gpu_download(test, in.k_out, found, (size_t)width_kv);
            gpu_expect_equal(test, "decode_keeps_k_after_rope", turned_key, found, (size_t)width_kv);
            keep_rows(h.n_head, n_ctx, pos + 1, scores, rows);
            gpu_download(test, in.scores_out, row_found, n_scores);
            gpu_expect_equal(test, "decode_keeps_scores_and_writes_no_further", rows, row_found, n_scores);
            keep_rows(h.n_head, n_ctx, pos + 1, weights, rows);
            gpu_download(test, in.weights_out, row_found, n_scores);
            gpu_expect_equal(test, "decode_keeps_weights_and_writes_no_further", rows, row_found, n_scores);
        }
        gpu_download_cache(test, in.cache_k, found, n_cache, h.halves);
        gpu_expect_equal(test, "decode_writes_its_key_and_no_other", k, found, n_cache);
        gpu_download_cache(test, in.cache_v, found, n_cache, h.halves);
        gpu_expect_equal(test, "decode_writes_its_value_and_no_other", v, found, n_cache);
    }
    gpu_release(test);
}

static void check_decodes(gpu_test *test, bool halves) {
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
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        heads h = shapes[i];
        h.halves = halves;
        check_decode(test, h, i % 2 == 0, h.head_dim / 4 * 2, 300, positions, 8, i % 2 == 0);
    }
    /* More chunks than the grids have blocks: blocks take several. */
    static const int32_t late[] = {0, 4000, 9999};
    check_decode(test, (heads){2, 1, 16, halves}, false, 16, 10000, late, 3, true);
    /* More chunks than the last kernel holds at once; the ends of the softmax's tiles; and its blocks without clusters. */
    static const int32_t last[] = {1023, 1024, 4095, 4096, 8192, 12287, 12288, 19999};
    check_decode(test, (heads){2, 1, 16, halves}, false, 16, 20000, last, 8, true);
    const bool has_clusters = test->queue.has_clusters;
    test->queue.has_clusters = false;
    check_decode(test, (heads){2, 1, 16, halves}, false, 16, 20000, last, 8, true);
    test->queue.has_clusters = has_clusters;
    /* The softmax's partial sums come round its cluster twice, and three times. */
    static const int32_t round[] = {32767, 32768, 65535, 69999};
    check_decode(test, (heads){2, 1, 16, halves}, false, 16, 70000, round, 4, true);
    /* Real heads, more chunks than multiprocessors several times over. */
    static const int32_t far[] = {8192, 32767};
    check_decode(test, (heads){8, 2, 128, halves}, false, 128, 32768, far, 2, true);
}

void check_attention_decode(gpu_test *test) {
    check_decodes(test, false);
    check_decodes(test, true);
}

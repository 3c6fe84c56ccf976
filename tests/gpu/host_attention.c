#include "tests/gpu/host_attention.h"

#include <math.h>

#include "model/gguf/quant.h"
#include "numerics/contract.h"

void host_scores(heads h, const float *q, const float *cache, int32_t own, int32_t n_kv, float scale, float *out) {
    for (int32_t head = 0; head < h.n_head; head++)
        for (int32_t p = 0; p < n_kv; p++) {
            const float *k = cache + ((int64_t)p * h.n_head_kv + head / (h.n_head / h.n_head_kv)) * h.head_dim;
            out[head * n_kv + p] = p <= own ? fd_dot(q + head * h.head_dim, k, h.head_dim) * scale : -INFINITY;
        }
}

void host_softmax(int32_t n_head, const float *scores, int32_t own, int32_t n_kv, float *out) {
    for (int32_t head = 0; head < n_head; head++) {
        const float *s = scores + head * n_kv;
        float *w = out + head * n_kv, max = -INFINITY;
        for (int32_t p = 0; p <= own; p++) max = fmaxf(max, s[p]);
        for (int32_t p = 0; p <= own; p++) w[p] = fd_exp32(s[p] - max);
        float sum = fd_sum(w, own + 1);
        for (int32_t p = 0; p < n_kv; p++) w[p] = p <= own ? w[p] / sum : 0.0f;
    }
}

void host_mix(heads h, const float *weights, const float *cache, int32_t own, int32_t n_kv, float *out) {
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

void host_round_cached(heads h, float *x, int64_t n) {
    if (h.halves) fd_round_through(FD_F16, x, n);
}

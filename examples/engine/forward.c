#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

static void rms_norm(const model *m, const float *x, const float *weight, int n, float *out) {
    for (int t = 0; t < n; t++) {
        const float *row = x + t * m->n_embd;
        float sum = 0;
        for (int i = 0; i < m->n_embd; i++) sum += row[i] * row[i];
        float mean = sum / (float)m->n_embd;
        float scale = 1 / (m->bug == BUG_EPS_OUTSIDE ? sqrtf(mean) + m->eps : sqrtf(mean + m->eps));
        for (int i = 0; i < m->n_embd; i++) out[t * m->n_embd + i] = row[i] * scale * weight[i];
    }
}

/* out[t] = w x[t] + bias with w [n_out, n_in]. */
static void matmul(const model *m, const float *x, const float *w, const float *bias, int n, int n_in, int n_out,
                   float *out) {
    for (int t = 0; t < n; t++)
        for (int o = 0; o < n_out; o++) {
            float sum = 0;
            for (int i = 0; i < n_in; i++)
                sum += x[t * n_in + i] * (m->bug == BUG_TRANSPOSED ? w[i * n_out + o] : w[o * n_in + i]);
            out[t * n_out + o] = bias ? sum + bias[o] : sum;
        }
}

static void rope(const model *m, float *x, int n_head, int n, int pos0) {
    int d = m->head_dim;
    bool halves = m->is_qwen2 != (m->bug == BUG_ROPE_PAIRING);
    for (int t = 0; t < n; t++)
        for (int h = 0; h < n_head; h++)
            for (int i = 0; i < d / 2; i++) {
                float *head = x + (t * n_head + h) * d;
                int a = halves ? i : 2 * i, b = halves ? i + d / 2 : 2 * i + 1;
                float angle = (float)(pos0 + t) * powf(m->rope_base, -2.0f * (float)i / (float)d);
                float c = cosf(angle), s = sinf(angle), x0 = head[a], x1 = head[b];
                head[a] = x0 * c - x1 * s;
                head[b] = x0 * s + x1 * c;
            }
}

/* scores and weights: [n, n_head, pos0 + n] */
static void attention(const model *m, const layer *l, const float *q, int n, int pos0, float *scores, float *weights,
                      float *out) {
    int d = m->head_dim, group = m->n_head / m->n_head_kv, n_key = pos0 + n;
    float scale = 1 / sqrtf((float)d);
    for (int t = 0; t < n; t++)
        for (int h = 0; h < m->n_head; h++) {
            int kv = m->bug == BUG_GQA_MODULO ? h % m->n_head_kv : h / group;
            float *score = scores + (t * m->n_head + h) * n_key, *weight = weights + (t * m->n_head + h) * n_key;
            float largest = -INFINITY, sum = 0;
            for (int k = 0; k < n_key; k++) {
                score[k] = 0;
                for (int i = 0; i < d; i++)
                    score[k] += q[(t * m->n_head + h) * d + i] * l->k_cache[(k * m->n_head_kv + kv) * d + i];
                score[k] = k <= pos0 + t ? score[k] * scale : -INFINITY;
                largest = fmaxf(largest, score[k]);
            }
            for (int k = 0; k < n_key; k++) sum += weight[k] = expf(score[k] - largest);
            for (int k = 0; k < n_key; k++) weight[k] /= sum;
            for (int i = 0; i < d; i++) {
                float mix = 0;
                for (int k = 0; k <= pos0 + t; k++) mix += weight[k] * l->v_cache[(k * m->n_head_kv + kv) * d + i];
                out[(t * m->n_head + h) * d + i] = mix;
            }
        }
}

/* blk.LAYER.NAME [n, n_head, width]. The library knows by its name that attention runs over key positions. */
static void put(const model *m, int layer, const char *name, const float *x, int n, int n_head, int width) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    fd_tracer_tensor t = {.name = full, .dtype = FD_TRACER_F32, .data = x, .n_dim = 3, .shape = {n, n_head, width}};
    fd_tracer_put(m->trace, &t);
}

static float *rows(int n, int width) {
    float *p = malloc((size_t)n * width * sizeof *p);
    if (!p) die("out of memory");
    return p;
}

static void run_attention(model *m, int i, const float *normed, float *x, int n, int pos0) {
    layer *l = &m->layers[i];
    int q_width = m->n_head * m->head_dim, kv_width = m->n_head_kv * m->head_dim, n_key = pos0 + n;
    float *q = rows(n, q_width), *k = rows(n, kv_width), *v = rows(n, kv_width), *mixed = rows(n, q_width);
    float *scores = rows(n, m->n_head * n_key), *weights = rows(n, m->n_head * n_key), *projected = rows(n, m->n_embd);
    matmul(m, normed, l->q, l->q_bias, n, m->n_embd, q_width, q);
    matmul(m, normed, l->k, l->k_bias, n, m->n_embd, kv_width, k);
    matmul(m, normed, l->v, l->v_bias, n, m->n_embd, kv_width, v);
    put(m, i, "attn_q", q, n, m->n_head, m->head_dim);
    put(m, i, "attn_k", k, n, m->n_head_kv, m->head_dim);
    put(m, i, "attn_v", v, n, m->n_head_kv, m->head_dim);
    rope(m, q, m->n_head, n, pos0); /* in place: the puts above have copied */
    rope(m, k, m->n_head_kv, n, pos0);
    put(m, i, "attn_q_rope", q, n, m->n_head, m->head_dim);
    put(m, i, "attn_k_rope", k, n, m->n_head_kv, m->head_dim);
    memcpy(l->k_cache + pos0 * kv_width, k, (size_t)n * kv_width * sizeof *k);
    memcpy(l->v_cache + pos0 * kv_width, v, (size_t)n * kv_width * sizeof *v);
    put(m, i, "cache_k", l->k_cache + pos0 * kv_width, n, m->n_head_kv, m->head_dim);
    put(m, i, "cache_v", l->v_cache + pos0 * kv_width, n, m->n_head_kv, m->head_dim);
    attention(m, l, q, n, pos0, scores, weights, mixed);
    put(m, i, "attn_scores", scores, n, m->n_head, n_key);
    put(m, i, "attn_weights", weights, n, m->n_head, n_key);
    put(m, i, "attn_out", mixed, n, m->n_head, m->head_dim);
    matmul(m, mixed, l->attn_output, NULL, n, q_width, m->n_embd, projected);
    put(m, i, "attn_proj", projected, n, 1, m->n_embd);
    for (int e = 0; e < n * m->n_embd; e++) x[e] += projected[e];
    put(m, i, "ffn_inp", x, n, 1, m->n_embd);
    free(q), free(k), free(v), free(mixed), free(scores), free(weights), free(projected);
}

static void run_ffn(model *m, int i, const float *normed, float *x, int n) {
    layer *l = &m->layers[i];
    float *gate = rows(n, m->n_ff), *up = rows(n, m->n_ff), *down = rows(n, m->n_embd);
    matmul(m, normed, l->gate, NULL, n, m->n_embd, m->n_ff, gate);
    matmul(m, normed, l->up, NULL, n, m->n_embd, m->n_ff, up);
    put(m, i, "ffn_gate", gate, n, 1, m->n_ff);
    put(m, i, "ffn_up", up, n, 1, m->n_ff);
    for (int e = 0; e < n * m->n_ff; e++) gate[e] = gate[e] / (1 + expf(-gate[e])) * up[e];
    put(m, i, "ffn_act", gate, n, 1, m->n_ff);
    matmul(m, gate, l->down, NULL, n, m->n_ff, m->n_embd, down);
    put(m, i, "ffn_down", down, n, 1, m->n_embd);
    for (int e = 0; e < n * m->n_embd; e++) x[e] += down[e];
    put(m, i, "l_out", x, n, 1, m->n_embd);
    free(gate), free(up), free(down);
}

const float *forward(model *m, const int *tokens, int n, int pos0) {
    static float *logits;
    float *x = rows(n, m->n_embd), *normed = rows(n, m->n_embd);
    uint64_t row_bytes = m->embedding->size / m->embedding->rows;
    if (pos0 + n > m->n_ctx) die("%d positions, room for %d", pos0 + n, m->n_ctx);
    fd_tracer_step(m->trace, tokens, n);
    for (int t = 0; t < n; t++) {
        if (tokens[t] < 0 || tokens[t] >= m->n_vocab) die("token %d of %d", tokens[t], m->n_vocab);
        decode(m->embedding->type, m->embedding->bytes + tokens[t] * row_bytes, m->n_embd, x + t * m->n_embd);
    }
    fd_tracer_put_f32(m->trace, "token_embd", x, n, m->n_embd);
    for (int i = 0; i < m->n_layer; i++) {
        rms_norm(m, x, m->layers[i].attn_norm, n, normed);
        put(m, i, "attn_norm", normed, n, 1, m->n_embd);
        run_attention(m, i, normed, x, n, pos0);
        rms_norm(m, x, m->layers[i].ffn_norm, n, normed);
        put(m, i, "ffn_norm", normed, n, 1, m->n_embd);
        run_ffn(m, i, normed, x, n);
    }
    rms_norm(m, x, m->output_norm, n, normed);
    fd_tracer_put_f32(m->trace, "output_norm", normed, n, m->n_embd);
    free(logits);
    logits = rows(n, m->n_vocab);
    matmul(m, normed, m->output, NULL, n, m->n_embd, m->n_vocab, logits);
    fd_tracer_put_f32(m->trace, "logits", logits, n, m->n_vocab);
    free(x), free(normed);
    return logits + (n - 1) * m->n_vocab;
}

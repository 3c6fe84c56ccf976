#include "bench/llama2c_loop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

typedef struct reader {
    const fd_gguf *gguf;
    fd_code code;
    fd_error *err;
} reader;

static const float *tensor(reader *r, int layer, const char *name) {
    char full[128];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    const fd_gguf_tensor *t = fd_gguf_find_tensor(r->gguf, full);
    if (t && t->dtype == FD_F32) return t->data;
    if (r->code == FD_OK)
        r->code = fd_fail(r->err, FD_ERR_UNSUPPORTED, "%s: the llama2.c-style loop needs it in F32", full);
    return NULL;
}

fd_code llama2c_open(const fd_gguf *gguf, const fd_hparams *h, int seq_len, llama2c *m, fd_error *err) {
    reader r = {gguf, FD_OK, err};
    *m = (llama2c){h->n_embd,  h->n_ff, h->n_layer, h->n_head,          h->n_head_kv,
                   h->n_vocab, seq_len, h->rms_eps, (float)h->rope.base};
    if (strcmp(h->arch, "llama") != 0 || h->rope.scaling != FD_ROPE_SCALING_NONE || h->rope.n_rot != h->head_dim)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "the llama2.c-style loop runs plain llama models only");
    m->embedding = tensor(&r, -1, "token_embd.weight");
    m->final_norm = tensor(&r, -1, "output_norm.weight");
    m->classifier = fd_gguf_find_tensor(gguf, "output.weight") ? tensor(&r, -1, "output.weight") : m->embedding;
    m->layers = calloc((size_t)m->n_layers, sizeof *m->layers);
    for (int l = 0; m->layers && l < m->n_layers; l++)
        m->layers[l] = (llama2c_layer){
            tensor(&r, l, "attn_norm.weight"), tensor(&r, l, "attn_q.weight"),      tensor(&r, l, "attn_k.weight"),
            tensor(&r, l, "attn_v.weight"),    tensor(&r, l, "attn_output.weight"), tensor(&r, l, "ffn_norm.weight"),
            tensor(&r, l, "ffn_gate.weight"),  tensor(&r, l, "ffn_down.weight"),    tensor(&r, l, "ffn_up.weight")};

    size_t dim = (size_t)m->dim, hidden = (size_t)m->hidden_dim, kv = dim / (size_t)m->n_heads * (size_t)m->n_kv_heads;
    size_t cache = (size_t)m->n_layers * (size_t)seq_len * kv;
    m->x = calloc(dim, sizeof(float));
    m->xb = calloc(dim, sizeof(float));
    m->xb2 = calloc(dim, sizeof(float));
    m->hb = calloc(hidden, sizeof(float));
    m->hb2 = calloc(hidden, sizeof(float));
    m->q = calloc(dim, sizeof(float));
    m->att = calloc((size_t)m->n_heads * (size_t)seq_len, sizeof(float));
    m->logits = calloc((size_t)m->vocab_size, sizeof(float));
    m->key_cache = calloc(cache, sizeof(float));
    m->value_cache = calloc(cache, sizeof(float));
    if (!m->layers || !m->x || !m->xb || !m->xb2 || !m->hb || !m->hb2 || !m->q || !m->att || !m->logits ||
        !m->key_cache || !m->value_cache)
        r.code = fd_fail(err, FD_ERR_MEMORY, "out of memory");
    if (r.code != FD_OK) llama2c_close(m);
    return r.code;
}

void llama2c_close(llama2c *m) {
    float *const blocks[] = {m->x, m->xb, m->xb2, m->hb, m->hb2, m->q, m->att, m->logits, m->key_cache, m->value_cache};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) free(blocks[i]);
    free(m->layers);
}

/* ---- the forward pass ---- */

static void rmsnorm(float *o, const float *x, const float *weight, int size, float eps) {
    float ss = 0.0f;
    for (int j = 0; j < size; j++) ss += x[j] * x[j];
    ss = 1.0f / sqrtf(ss / (float)size + eps);
    for (int j = 0; j < size; j++) o[j] = weight[j] * (ss * x[j]);
}

static void softmax(float *x, int size) {
    float max = x[0], sum = 0.0f;
    for (int i = 1; i < size; i++)
        if (x[i] > max) max = x[i];
    for (int i = 0; i < size; i++) {
        x[i] = expf(x[i] - max);
        sum += x[i];
    }
    for (int i = 0; i < size; i++) x[i] /= sum;
}

static void matmul(float *xout, const float *x, const float *w, int n, int d) {
#pragma omp parallel for
    for (int i = 0; i < d; i++) {
        float val = 0.0f;
        for (int j = 0; j < n; j++) val += w[(size_t)i * (size_t)n + (size_t)j] * x[j];
        xout[i] = val;
    }
}

static void rotate(float *v, int size, int head_size, int pos, float base) {
    for (int i = 0; i < size; i += 2) {
        float freq = 1.0f / powf(base, (float)(i % head_size) / (float)head_size);
        float fcr = cosf((float)pos * freq), fci = sinf((float)pos * freq), v0 = v[i], v1 = v[i + 1];
        v[i] = v0 * fcr - v1 * fci;
        v[i + 1] = v0 * fci + v1 * fcr;
    }
}

static void attention(llama2c *m, const float *keys, const float *values, int pos) {
    int head_size = m->dim / m->n_heads, kv_dim = head_size * m->n_kv_heads, kv_mul = m->n_heads / m->n_kv_heads;
#pragma omp parallel for
    for (int h = 0; h < m->n_heads; h++) {
        const float *q = m->q + h * head_size;
        float *att = m->att + h * m->seq_len, *xb = m->xb + h * head_size;
        for (int t = 0; t <= pos; t++) {
            const float *k = keys + (size_t)t * (size_t)kv_dim + (h / kv_mul) * head_size;
            float score = 0.0f;
            for (int i = 0; i < head_size; i++) score += q[i] * k[i];
            att[t] = score / sqrtf((float)head_size);
        }
        softmax(att, pos + 1);
        memset(xb, 0, (size_t)head_size * sizeof *xb);
        for (int t = 0; t <= pos; t++) {
            const float *v = values + (size_t)t * (size_t)kv_dim + (h / kv_mul) * head_size;
            float a = att[t];
            for (int i = 0; i < head_size; i++) xb[i] += a * v[i];
        }
    }
}

float *llama2c_forward(llama2c *m, int token, int pos) {
    int dim = m->dim, hidden_dim = m->hidden_dim, head_size = dim / m->n_heads, kv_dim = head_size * m->n_kv_heads;
    float *x = m->x;
    memcpy(x, m->embedding + (size_t)token * (size_t)dim, (size_t)dim * sizeof *x);
    for (int l = 0; l < m->n_layers; l++) {
        const llama2c_layer *w = &m->layers[l];
        size_t layer_cache = (size_t)l * (size_t)m->seq_len * (size_t)kv_dim;
        float *k = m->key_cache + layer_cache + (size_t)pos * (size_t)kv_dim;
        float *v = m->value_cache + layer_cache + (size_t)pos * (size_t)kv_dim;
        rmsnorm(m->xb, x, w->attn_norm, dim, m->eps);
        matmul(m->q, m->xb, w->wq, dim, dim);
        matmul(k, m->xb, w->wk, dim, kv_dim);
        matmul(v, m->xb, w->wv, dim, kv_dim);
        rotate(m->q, dim, head_size, pos, m->rope_base);
        rotate(k, kv_dim, head_size, pos, m->rope_base);
        attention(m, m->key_cache + layer_cache, m->value_cache + layer_cache, pos);
        matmul(m->xb2, m->xb, w->wo, dim, dim);
        for (int i = 0; i < dim; i++) x[i] += m->xb2[i];
        rmsnorm(m->xb, x, w->ffn_norm, dim, m->eps);
        matmul(m->hb, m->xb, w->w_gate, dim, hidden_dim);
        matmul(m->hb2, m->xb, w->w_up, dim, hidden_dim);
        for (int i = 0; i < hidden_dim; i++) {
            float val = m->hb[i];
            val *= 1.0f / (1.0f + expf(-val));
            m->hb[i] = val * m->hb2[i];
        }
        matmul(m->xb, m->hb, w->w_down, hidden_dim, dim);
        for (int i = 0; i < dim; i++) x[i] += m->xb[i];
    }
    rmsnorm(x, x, m->final_norm, dim, m->eps);
    matmul(m->logits, x, m->classifier, dim, m->vocab_size);
    return m->logits;
}

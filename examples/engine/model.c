#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

const char *const bug_names[N_BUG] = {"none",       "rope-pairing", "eps-outside", "no-bias",
                                      "gqa-modulo", "short-read",   "transposed"};

static void *alloc(size_t n) {
    void *p = calloc(n, sizeof(float));
    if (!p) die("out of memory");
    return p;
}

/* A tensor as floats, of the shape it must have. */
static float *load(const model *m, const char *name, int rows, int columns) {
    const tensor *t = gguf_tensor(&m->file, name);
    if (!t) die("the model has no %s", name);
    if (t->rows != (uint64_t)rows || t->columns != (uint64_t)columns)
        die("%s is [%d, %d], expected [%d, %d]", name, (int)t->rows, (int)t->columns, rows, columns);
    float *out = alloc((size_t)rows * columns);
    unsigned char *bytes = calloc(t->size, 1);
    if (!bytes) die("out of memory");
    uint64_t size = t->size;
    if (m->bug == BUG_SHORT_READ && t->type == TYPE_Q8_0) size = t->columns * t->rows / 2;
    memcpy(bytes, t->bytes, size);
    decode(t->type, bytes, t->columns * t->rows, out);
    free(bytes);
    fd_tracer_put_weight_f32(m->trace, name, out, rows, columns); /* what was loaded, right or not */
    return out;
}

static float *load_in(const model *m, int layer, const char *name, int rows, int columns) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    if (strstr(name, ".bias") && !gguf_tensor(&m->file, full)) return NULL;
    return load(m, full, rows, columns);
}

static void load_layer(model *m, int i) {
    layer *l = &m->layers[i];
    int q = m->n_head * m->head_dim, kv = m->n_head_kv * m->head_dim;
    l->attn_norm = load_in(m, i, "attn_norm.weight", 1, m->n_embd);
    l->q = load_in(m, i, "attn_q.weight", q, m->n_embd);
    l->k = load_in(m, i, "attn_k.weight", kv, m->n_embd);
    l->v = load_in(m, i, "attn_v.weight", kv, m->n_embd);
    if (m->bug != BUG_NO_BIAS) {
        l->q_bias = load_in(m, i, "attn_q.bias", 1, q);
        l->k_bias = load_in(m, i, "attn_k.bias", 1, kv);
        l->v_bias = load_in(m, i, "attn_v.bias", 1, kv);
    }
    l->attn_output = load_in(m, i, "attn_output.weight", m->n_embd, q);
    l->ffn_norm = load_in(m, i, "ffn_norm.weight", 1, m->n_embd);
    l->gate = load_in(m, i, "ffn_gate.weight", m->n_ff, m->n_embd);
    l->up = load_in(m, i, "ffn_up.weight", m->n_ff, m->n_embd);
    l->down = load_in(m, i, "ffn_down.weight", m->n_embd, m->n_ff);
    l->k_cache = alloc((size_t)m->n_ctx * kv);
    l->v_cache = alloc((size_t)m->n_ctx * kv);
}

static int number(const model *m, const char *arch, const char *key) {
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    double value = gguf_number(&m->file, full, 0);
    if (!(value >= 1 && value <= 1 << 20)) die("%s is missing or senseless", full);
    return (int)value;
}

model model_load(const char *path, int n_ctx, bug bug, fd_tracer *trace) {
    model m = {.file = gguf_read(path), .n_ctx = n_ctx, .bug = bug, .trace = trace};
    char arch[16], key[96];
    gguf_text(&m.file, "general.architecture", arch, sizeof arch);
    m.is_qwen2 = strcmp(arch, "qwen2") == 0;
    if (!m.is_qwen2 && strcmp(arch, "llama") != 0) die("architecture %s; this engine runs llama and qwen2", arch);
    if (bug == BUG_NO_BIAS && !m.is_qwen2) die("no-bias: a llama has no bias to leave out");
    m.n_layer = number(&m, arch, "block_count");
    m.n_embd = number(&m, arch, "embedding_length");
    m.n_ff = number(&m, arch, "feed_forward_length");
    m.n_head = number(&m, arch, "attention.head_count");
    m.n_head_kv = number(&m, arch, "attention.head_count_kv");
    if (m.n_embd % m.n_head || m.n_head % m.n_head_kv)
        die("%d heads on %d, for a width of %d", m.n_head, m.n_head_kv, m.n_embd);
    m.head_dim = m.n_embd / m.n_head;
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    m.eps = (float)gguf_number(&m.file, key, 1e-5);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    m.rope_base = (float)gguf_number(&m.file, key, 10000);

    m.embedding = gguf_tensor(&m.file, "token_embd.weight");
    if (!m.embedding || m.embedding->columns != (uint64_t)m.n_embd) die("the model has no fitting token_embd.weight");
    m.n_vocab = (int)m.embedding->rows;
    m.output_norm = load(&m, "output_norm.weight", 1, m.n_embd);
    bool tied = !gguf_tensor(&m.file, "output.weight");
    m.output = load(&m, tied ? "token_embd.weight" : "output.weight", m.n_vocab, m.n_embd);
    if (bug == BUG_SHORT_READ && m.embedding->type != TYPE_Q8_0) die("short-read: the model is not of Q8_0");
    m.layers = calloc((size_t)m.n_layer, sizeof *m.layers);
    if (!m.layers) die("out of memory");
    for (int i = 0; i < m.n_layer; i++) load_layer(&m, i);
    return m;
}

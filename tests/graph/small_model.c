#include "tests/graph/small_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_writer/gguf_writer.h"
#include "tests/common.h"

typedef struct maker {
    const small_model_options *o;
    fd_gguf_writer *writer;
    fd_error err;
    float *data; /* big enough for every tensor; all share it */
} maker;

static void key(maker *m, const char *name, uint32_t value) {
    if (m->o->drop_key && strcmp(m->o->drop_key, name) == 0) return;
    if (m->o->set_key && strcmp(m->o->set_key, name) == 0) value = m->o->set_value;
    char full[128];
    snprintf(full, sizeof full, "%s.%s", m->o->arch, name);
    must(fd_gguf_put_u32(m->writer, full, value, &m->err), &m->err);
}

static void tensor(maker *m, const char *name, int64_t n_col, int64_t n_row) {
    if (m->o->skip && strcmp(m->o->skip, name) == 0) return;
    if (m->o->widen && strcmp(m->o->widen, name) == 0) n_col += 32;
    int64_t shape[2] = {n_col, n_row};
    must(fd_gguf_put_tensor(m->writer, name, FD_F32, n_row > 1 ? 2 : 1, shape, m->data, NULL, NULL, &m->err), &m->err);
}

static void layer_tensor(maker *m, int layer, const char *name, int64_t n_col, int64_t n_row) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    tensor(m, full, n_col, n_row);
}

static void keys(maker *m) {
    must(fd_gguf_put_string(m->writer, "general.architecture", m->o->arch, &m->err), &m->err);
    key(m, "block_count", 2);
    key(m, "embedding_length", 64);
    key(m, "feed_forward_length", 96);
    key(m, "context_length", 256);
    key(m, "attention.head_count", 4);
    key(m, "attention.head_count_kv", 2);
    char full[128];
    snprintf(full, sizeof full, "%s.attention.layer_norm_rms_epsilon", m->o->arch);
    if (!m->o->drop_key || strcmp(m->o->drop_key, "attention.layer_norm_rms_epsilon") != 0)
        must(fd_gguf_put_f32(m->writer, full, 1e-5f, &m->err), &m->err);
    if (m->o->set_key && strcmp(m->o->set_key, "rope.dimension_count") == 0) key(m, "rope.dimension_count", 0);
    if (m->o->set_key && strcmp(m->o->set_key, "expert_count") == 0) key(m, "expert_count", 0);
    if (m->o->extra_key) {
        snprintf(full, sizeof full, "%s.%s", m->o->arch, m->o->extra_key);
        must(fd_gguf_put_f32(m->writer, full, m->o->extra_value, &m->err), &m->err);
    }
    if (m->o->scaling) {
        snprintf(full, sizeof full, "%s.rope.scaling.type", m->o->arch);
        must(fd_gguf_put_string(m->writer, full, m->o->scaling, &m->err), &m->err);
        snprintf(full, sizeof full, "%s.rope.scaling.factor", m->o->arch);
        must(fd_gguf_put_f32(m->writer, full, m->o->scaling_factor, &m->err), &m->err);
    }
}

static void tensors(maker *m) {
    bool qwen2 = strcmp(m->o->arch, "qwen2") == 0;
    tensor(m, "token_embd.weight", 64, 32);
    tensor(m, "output_norm.weight", 64, 1);
    if (!m->o->tied) tensor(m, "output.weight", 64, 32);
    if (m->o->extra) tensor(m, m->o->extra, 32, 1);
    for (int l = 0; l < 2; l++) {
        layer_tensor(m, l, "attn_norm.weight", 64, 1);
        layer_tensor(m, l, "attn_q.weight", 64, 64);
        layer_tensor(m, l, "attn_k.weight", 64, 32);
        layer_tensor(m, l, "attn_v.weight", 64, 32);
        if (qwen2) {
            layer_tensor(m, l, "attn_q.bias", 64, 1);
            layer_tensor(m, l, "attn_k.bias", 32, 1);
            layer_tensor(m, l, "attn_v.bias", 32, 1);
        }
        layer_tensor(m, l, "attn_output.weight", 64, 64);
        layer_tensor(m, l, "ffn_norm.weight", 64, 1);
        layer_tensor(m, l, "ffn_gate.weight", 64, 96);
        layer_tensor(m, l, "ffn_up.weight", 64, 96);
        layer_tensor(m, l, "ffn_down.weight", 96, 64);
    }
}

fd_gguf *small_model(const small_model_options *options) {
    maker m = {.o = options};
    size_t n = 96 * 128;
    m.data = malloc(sizeof *m.data * n);
    for (size_t i = 0; i < n; i++) m.data[i] = (float)((i * 2654435761u) % 2001) * 1e-4f - 0.1f;
    must(fd_gguf_writer_new(&m.writer, &m.err), &m.err);
    keys(&m);
    tensors(&m);
    fd_gguf *gguf;
    must(fd_gguf_write_and_open(m.writer, &gguf, &m.err), &m.err);
    free(m.data);
    return kept(gguf);
}

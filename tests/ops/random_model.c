#include "tests/ops/random_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_writer/gguf_writer.h"
#include "model/gguf/quant.h"
#include "tests/common.h"

enum { LAYERS = 3, WIDTH = 288, HEADS = 6, KV_HEADS = 2, FF = 352, VOCAB = 101 };

typedef struct maker {
    fd_gguf_writer *writer;
    uint64_t seed;
    fd_error err;
} maker;

static float uniform(maker *m) { /* in [-1, 1); the generator is Knuth's MMIX */
    m->seed = m->seed * 6364136223846793005u + 1442695040888963407u;
    return (float)((int32_t)(m->seed >> 40) - (1 << 23)) * 0x1p-23f;
}

static void put(maker *m, const char *name, uint32_t dtype, int64_t n_col, int64_t n_row, float mean, float spread) {
    int64_t row_bytes = fd_dtype_row_bytes(dtype, n_col), shape[2] = {n_col, n_row};
    char *data = kept(malloc((size_t)(n_row * row_bytes)));
    float *row = malloc(sizeof *row * (size_t)n_col);
    for (int64_t r = 0; r < n_row; r++) {
        for (int64_t k = 0; k < n_col; k++) row[k] = mean + spread * uniform(m);
        fd_quantize_row(dtype, row, data + r * row_bytes, n_col);
    }
    free(row);
    must(fd_gguf_put_tensor(m->writer, name, dtype, n_row > 1 ? 2 : 1, shape, data, NULL, NULL, &m->err), &m->err);
}

static void put_layer(maker *m, int layer, uint32_t dtype, bool qwen2) {
    const int kv = WIDTH / HEADS * KV_HEADS;
    const struct {
        const char *name;
        int64_t n_col, n_row; /* n_row 1: a vector */
        bool qwen2_only;
    } tensors[] = {{"attn_norm.weight", WIDTH, 1, false}, {"attn_q.weight", WIDTH, WIDTH, false},
                   {"attn_k.weight", WIDTH, kv, false},   {"attn_v.weight", WIDTH, kv, false},
                   {"attn_q.bias", WIDTH, 1, true},       {"attn_k.bias", kv, 1, true},
                   {"attn_v.bias", kv, 1, true},          {"attn_output.weight", WIDTH, WIDTH, false},
                   {"ffn_norm.weight", WIDTH, 1, false},  {"ffn_gate.weight", WIDTH, FF, false},
                   {"ffn_up.weight", WIDTH, FF, false},   {"ffn_down.weight", FF, WIDTH, false}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", layer, tensors[i].name);
        if (tensors[i].qwen2_only && !qwen2) continue;
        bool vector = tensors[i].n_row == 1, norm = vector && !tensors[i].qwen2_only;
        put(m, name, vector ? FD_F32 : dtype, tensors[i].n_col, tensors[i].n_row, norm ? 1.0f : 0.0f,
            vector ? 0.5f : sqrtf(3.0f / (float)tensors[i].n_col));
    }
}

random_model random_model_make(const char *arch, uint32_t dtype) {
    maker m = {.seed = 7};
    char key[128];
    static const struct {
        const char *name;
        uint32_t value;
    } keys[] = {{"block_count", LAYERS}, {"embedding_length", WIDTH},     {"feed_forward_length", FF},
                {"context_length", 512}, {"attention.head_count", HEADS}, {"attention.head_count_kv", KV_HEADS}};
    must(fd_gguf_writer_new(&m.writer, &m.err), &m.err);
    must(fd_gguf_put_string(m.writer, "general.architecture", arch, &m.err), &m.err);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, keys[i].name);
        must(fd_gguf_put_u32(m.writer, key, keys[i].value, &m.err), &m.err);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    must(fd_gguf_put_f32(m.writer, key, 1e-5f, &m.err), &m.err);
    put(&m, "token_embd.weight", dtype, WIDTH, VOCAB, 0.0f, 1.0f);
    put(&m, "output_norm.weight", FD_F32, WIDTH, 1, 1.0f, 0.5f);
    put(&m, "output.weight", dtype, WIDTH, VOCAB, 0.0f, 0.1f);
    for (int l = 0; l < LAYERS; l++) put_layer(&m, l, dtype, strcmp(arch, "qwen2") == 0);

    random_model model;
    must(fd_gguf_write_and_open(m.writer, &model.gguf, &m.err), &m.err);
    must(fd_graph_build(kept(model.gguf), &model.graph, NULL, &m.err), &m.err);
    kept(model.graph);
    return model;
}

/* mixed_model OUT.gguf [experts | rare]: a small llama whose layers use every weight type there is a kernel for, side by
 * side as in mixed quantisations (V and down in Q6_K beside Q4_K, gate and up of two types), so that the engine
 * fuses some products and not others. The weights are random blocks with scales of usual size; heads of 64, three
 * query heads a K/V head. With `experts` each feed-forward is two of five; `rare` has the types of fewer files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_writer/block_scales.h"
#include "model/gguf_writer/gguf_writer.h"
#include "bench/run.h"
#include "model/gguf/quant.h"

enum {
    MOST_LAYERS = 5,
    N_EMBD = 768,
    N_HEAD = 12,
    N_HEAD_KV = 4,
    N_FF = 1024,
    N_VOCAB = 397,
    N_EXPERT = 5,
    N_CHOSEN = 2,
    N_KV = N_EMBD / N_HEAD * N_HEAD_KV
};

typedef struct kinds {
    uint32_t q, k, v, out, gate, up, down;
} kinds;

static const kinds common_layers[MOST_LAYERS] = {
    {FD_Q4_K, FD_Q4_K, FD_Q6_K, FD_Q4_K, FD_Q4_K, FD_Q4_K, FD_Q6_K},
    {FD_F16, FD_BF16, FD_F16, FD_F32, FD_Q8_0, FD_Q4_0, FD_BF16},
    {FD_Q8_0, FD_Q8_0, FD_Q8_0, FD_Q4_0, FD_F16, FD_F16, FD_Q4_0},
    {FD_Q5_0, FD_Q5_0, FD_Q8_0, FD_Q5_0, FD_Q5_0, FD_Q5_0, FD_Q8_0},
};
static const kinds rare_layers[MOST_LAYERS] = {
    {FD_Q4_1, FD_Q4_1, FD_Q5_1, FD_Q5_1, FD_Q2_K, FD_Q2_K, FD_Q3_K},
    {FD_Q3_K, FD_Q3_K, FD_Q3_K, FD_Q2_K, FD_Q5_K, FD_Q5_K, FD_Q4_1},
    {FD_IQ4_NL, FD_IQ4_XS, FD_IQ4_XS, FD_MXFP4, FD_MXFP4, FD_MXFP4, FD_NVFP4},
    {FD_IQ1_S, FD_IQ1_M, FD_IQ2_XXS, FD_IQ2_XS, FD_IQ2_S, FD_IQ2_S, FD_IQ3_XXS},
    {FD_IQ3_S, FD_TQ1_0, FD_TQ2_0, FD_NVFP4, FD_IQ4_NL, FD_IQ4_NL, FD_F64},
};

static uint64_t state = 0x452821e638d01377u;

static uint32_t random_bits(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* Uniform in ±a, of the same variance as N(0, 1/n). */
static float weight_like(int64_t n) {
    return ((float)(random_bits() >> 8) / 8388608.0f - 1.0f) * sqrtf(3.0f / (float)n);
}

/* `n` matrices in a tensor of three dimensions; 0: one, in one of two. */
static void add_matrices(fd_gguf_writer *writer, const char *name, uint32_t dtype, int64_t n, int64_t n_row_each,
                         int64_t n_col, fd_error *err) {
    const int64_t row_bytes = fd_dtype_row_bytes(dtype, n_col), n_row = n > 0 ? n * n_row_each : n_row_each;
    const size_t bytes = (size_t)(row_bytes * n_row), block = (size_t)fd_dtype_get(dtype)->block_bytes;
    uint8_t *data = malloc(bytes); /* the writer reads it until the end of the program */
    float *row = malloc(sizeof *row * (size_t)n_col);
    if (!data || !row) exit(2);
    if (fd_can_quantize(dtype)) {
        for (int64_t r = 0; r < n_row; r++) {
            for (int64_t i = 0; i < n_col; i++) row[i] = weight_like(n_col);
            fd_quantize_row(dtype, row, data + r * row_bytes, n_col);
        }
    } else if (dtype == FD_F64) { /* more bits than binary32 has */
        for (int64_t i = 0; i < n_row * n_col; i++)
            ((double *)(void *)data)[i] = (double)weight_like(n_col) * (1.0 + 0x1p-30);
    } else {
        for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)random_bits();
        for (size_t i = 0; i < bytes; i += block)
            blocks_set_deviation(dtype, data + i, 1,
                                 (1.0f + (float)(random_bits() % 64) / 64.0f) / sqrtf((float)n_col));
    }
    must(fd_gguf_put_tensor(writer, name, dtype, n > 0 ? 3 : 2, (int64_t[]){n_col, n_row_each, n}, data, NULL, NULL,
                            err),
         err);
    free(row);
}

static void add_matrix(fd_gguf_writer *writer, const char *name, uint32_t dtype, int64_t n_row, int64_t n_col,
                       fd_error *err) {
    add_matrices(writer, name, dtype, 0, n_row, n_col, err);
}

static void add_norm(fd_gguf_writer *writer, const char *name, fd_error *err) {
    float *data = malloc(sizeof *data * N_EMBD);
    if (!data) exit(2);
    for (int i = 0; i < N_EMBD; i++) data[i] = 1.0f + 0.2f * weight_like(3);
    must(fd_gguf_put_tensor(writer, name, FD_F32, 1, (int64_t[]){N_EMBD}, data, NULL, NULL, err), err);
}

static void add_layer(fd_gguf_writer *writer, int layer, const kinds *t, bool experts, fd_error *err) {
    const struct {
        const char *name;
        uint32_t dtype;
        int64_t n_row, n_col;
    } matrices[] = {
        {"attn_q", t->q, N_EMBD, N_EMBD},        {"attn_k", t->k, N_KV, N_EMBD},      {"attn_v", t->v, N_KV, N_EMBD},
        {"attn_output", t->out, N_EMBD, N_EMBD}, {"ffn_gate", t->gate, N_FF, N_EMBD}, {"ffn_up", t->up, N_FF, N_EMBD},
        {"ffn_down", t->down, N_EMBD, N_FF},
    };
    char name[64];
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        bool is_expert = experts && strncmp(matrices[i].name, "ffn", 3) == 0;
        snprintf(name, sizeof name, "blk.%d.%s%s.weight", layer, matrices[i].name, is_expert ? "_exps" : "");
        add_matrices(writer, name, matrices[i].dtype, is_expert ? N_EXPERT : 0, matrices[i].n_row, matrices[i].n_col,
                     err);
    }
    if (experts) {
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", layer);
        add_matrix(writer, name, FD_F32, N_EXPERT, N_EMBD, err);
    }
    snprintf(name, sizeof name, "blk.%d.attn_norm.weight", layer);
    add_norm(writer, name, err);
    snprintf(name, sizeof name, "blk.%d.ffn_norm.weight", layer);
    add_norm(writer, name, err);
}

int main(int argc, char **argv) {
    const bool experts = argc == 3 && strcmp(argv[2], "experts") == 0, rare = argc == 3 && strcmp(argv[2], "rare") == 0;
    const kinds *layers = rare ? rare_layers : common_layers;
    const int n_layer = rare ? 5 : 4;
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"llama.block_count", (uint32_t)n_layer},
                   {"llama.context_length", 1024},
                   {"llama.embedding_length", N_EMBD},
                   {"llama.feed_forward_length", N_FF},
                   {"llama.attention.head_count", N_HEAD},
                   {"llama.attention.head_count_kv", N_HEAD_KV},
                   {"llama.vocab_size", N_VOCAB},
                   {"llama.rope.dimension_count", N_EMBD / N_HEAD}};
    fd_error err = {0};
    fd_gguf_writer *writer;
    if (argc != 2 && !experts && !rare) {
        fprintf(stderr, "usage: mixed_model OUT.gguf [experts | rare]\n");
        return 2;
    }
    must(fd_gguf_writer_new(&writer, &err), &err);
    must(fd_gguf_put_string(writer, "general.architecture", "llama", &err), &err);
    must(fd_gguf_put_string(writer, "general.name", "mixed types", &err), &err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        must(fd_gguf_put_u32(writer, numbers[i].key, numbers[i].value, &err), &err);
    if (experts) must(fd_gguf_put_u32(writer, "llama.expert_count", N_EXPERT, &err), &err);
    if (experts) must(fd_gguf_put_u32(writer, "llama.expert_used_count", N_CHOSEN, &err), &err);
    must(fd_gguf_put_f32(writer, "llama.attention.layer_norm_rms_epsilon", 1e-5f, &err), &err);
    must(fd_gguf_put_f32(writer, "llama.rope.freq_base", 10000.0f, &err), &err);
    add_matrix(writer, "token_embd.weight", rare ? FD_Q3_K : FD_Q4_K, N_VOCAB, N_EMBD, &err);
    for (int layer = 0; layer < n_layer; layer++) add_layer(writer, layer, &layers[layer], experts, &err);
    add_norm(writer, "output_norm.weight", &err);
    add_matrix(writer, "output.weight", rare ? FD_Q5_K : FD_Q6_K, N_VOCAB, N_EMBD, &err);
    must(fd_gguf_write(writer, argv[1], &err), &err);
    fd_gguf_writer_free(writer);
    return 0;
}

/* make_model OUT.gguf: a model of random weights with real dimensions, for measuring. Nothing of the model is held in
 * memory: each weight is a function of (seed, tensor name, element), computed while the file is written, so the same
 * options give the same file on every machine and with any number of threads.
 *
 * Matrices are ~ N(0, 1/fan_in), so that activations keep their size through the layers; norms are near 1. The text
 * such a model writes is noise, its arithmetic is not: no value overflows, nothing is zero. */
#include <argp.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/random_weights.h"
#include "bench/gguf_writer/gguf_writer.h"
#include "model/gguf/quant.h"

typedef struct shape_of_model {
    const char *arch;
    int layers, embd, heads, kv_heads, ff, vocab, context;
    float rope_base, eps;
    bool tied; /* no output.weight: the embedding is used again */
} shape_of_model;

typedef struct preset {
    const char *name;
    shape_of_model shape;
} preset;

static const preset presets[] = {
    {"qwen2.5-0.5b", {"qwen2", 24, 896, 14, 2, 4864, 151936, 32768, 1e6f, 1e-6f, true}},
    {"tinyllama-1.1b", {"llama", 22, 2048, 32, 4, 5632, 32000, 2048, 1e4f, 1e-5f, false}},
    {"llama-8b", {"llama", 32, 4096, 32, 8, 14336, 128256, 8192, 5e5f, 1e-5f, false}},
};

typedef struct options {
    shape_of_model shape;
    const char *out;
    uint32_t dtype;
    bool mixed; /* Q4_K_M: some matrices in Q6_K */
    uint64_t seed;
    int layers_limit; /* 0: none */
} options;

/* ---- the model ---- */

typedef struct maker {
    const options *o;
    fd_gguf_writer *writer;
    random_weights *all; /* [n_max], borrowed by the writer until the file is written */
    size_t n, n_max;
    fd_error *err;
} maker;

static fd_code put(maker *m, const char *name, int32_t n_dim, int64_t columns, int64_t rows, uint32_t dtype, float mean,
                   float deviation) {
    if (m->n == m->n_max) return fd_fail(m->err, FD_ERR_MEMORY, "more tensors than counted");
    random_weights *w = &m->all[m->n++];
    *w = (random_weights){dtype, columns, random_stream(m->o->seed, name), mean, deviation};
    return fd_gguf_put_tensor(m->writer, name, dtype, n_dim, (int64_t[]){columns, rows}, NULL, random_weights_fill, w,
                              m->err);
}

static fd_code put_matrix(maker *m, const char *name, int64_t in, int64_t out, bool more_bits) {
    uint32_t dtype = m->o->mixed && more_bits ? FD_Q6_K : m->o->dtype;
    /* Rows that are no whole blocks of 256: Q4_K_M takes Q5_0 for Q4_K and Q8_0 for Q6_K. */
    if (m->o->mixed && in % 256 != 0) dtype = more_bits ? FD_Q8_0 : FD_Q5_0;
    return put(m, name, 2, in, out, dtype, 0.0f, 1.0f / sqrtf((float)in));
}

/* The layers whose V and down matrices Q4_K_M keeps in Q6_K: the first and last eighth, and every third between. */
static bool has_more_bits(int layer, int layers) {
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/* Vectors are F32 in every published file, whatever the matrices are. */
static fd_code put_norm(maker *m, const char *name) {
    return put(m, name, 1, m->o->shape.embd, 1, FD_F32, 1.0f, 0.1f);
}
static fd_code put_bias(maker *m, const char *name, int64_t n) {
    return put(m, name, 1, n, 1, FD_F32, 0.0f, 0.5f);
}

static fd_code put_layer(maker *m, int layer) {
    const shape_of_model *s = &m->o->shape;
    const int64_t kv = (int64_t)s->embd / s->heads * s->kv_heads;
    const struct {
        const char *name;
        int64_t in, out; /* in 0: a norm; out 0: a bias of `in` values, qwen2's only */
    } rows[] = {
        {"attn_norm.weight", 0, 0},
        {"attn_q.weight", s->embd, s->embd},
        {"attn_q.bias", s->embd, 0},
        {"attn_k.weight", s->embd, kv},
        {"attn_k.bias", kv, 0},
        {"attn_v.weight", s->embd, kv},
        {"attn_v.bias", kv, 0},
        {"attn_output.weight", s->embd, s->embd},
        {"ffn_norm.weight", 0, 0},
        {"ffn_gate.weight", s->embd, s->ff},
        {"ffn_up.weight", s->embd, s->ff},
        {"ffn_down.weight", s->ff, s->embd},
    };
    char name[64];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(name, sizeof name, "blk.%d.%s", layer, rows[i].name);
        if (rows[i].in == 0)
            FD_TRY(put_norm(m, name));
        else if (rows[i].out)
            FD_TRY(put_matrix(m, name, rows[i].in, rows[i].out,
                              has_more_bits(layer, s->layers) && (strstr(name, "attn_v") || strstr(name, "ffn_down"))));
        else if (strcmp(s->arch, "qwen2") == 0)
            FD_TRY(put_bias(m, name, rows[i].in));
    }
    return FD_OK;
}

static fd_code put_u32(maker *m, const char *key, int value) {
    char full[128];
    snprintf(full, sizeof full, "%s.%s", m->o->shape.arch, key);
    return fd_gguf_put_u32(m->writer, full, (uint32_t)value, m->err);
}

static fd_code put_metadata(maker *m, int layers) {
    const shape_of_model *s = &m->o->shape;
    char name[128];
    FD_TRY(fd_gguf_put_string(m->writer, "general.architecture", s->arch, m->err));
    snprintf(name, sizeof name, "random %s, seed %" PRIu64, s->arch, m->o->seed);
    FD_TRY(fd_gguf_put_string(m->writer, "general.name", name, m->err));
    if (fd_dtype_get(m->o->dtype)->is_quantised)
        FD_TRY(fd_gguf_put_u32(m->writer, "general.quantization_version", 2, m->err));
    FD_TRY(put_u32(m, "block_count", layers));
    FD_TRY(put_u32(m, "context_length", s->context));
    FD_TRY(put_u32(m, "embedding_length", s->embd));
    FD_TRY(put_u32(m, "feed_forward_length", s->ff));
    FD_TRY(put_u32(m, "attention.head_count", s->heads));
    FD_TRY(put_u32(m, "attention.head_count_kv", s->kv_heads));
    FD_TRY(put_u32(m, "rope.dimension_count", s->embd / s->heads));
    FD_TRY(put_u32(m, "vocab_size", s->vocab));
    snprintf(name, sizeof name, "%s.rope.freq_base", s->arch);
    FD_TRY(fd_gguf_put_f32(m->writer, name, s->rope_base, m->err));
    snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", s->arch);
    return fd_gguf_put_f32(m->writer, name, s->eps, m->err);
}

static fd_code make(const options *o, fd_error *err) {
    const shape_of_model *s = &o->shape;
    const int layers = o->layers_limit && o->layers_limit < s->layers ? o->layers_limit : s->layers;
    maker m = {.o = o, .n_max = (size_t)layers * 12 + 3, .err = err};
    m.all = calloc(m.n_max, sizeof *m.all);
    if (!m.all) return fd_fail(err, FD_ERR_MEMORY, "out of memory for %zu tensors", m.n_max);
    fd_code code = fd_gguf_writer_new(&m.writer, err);
    if (code == FD_OK) code = put_metadata(&m, layers);
    if (code == FD_OK) code = put_matrix(&m, "token_embd.weight", s->embd, s->vocab, s->tied);
    for (int layer = 0; layer < layers && code == FD_OK; layer++) code = put_layer(&m, layer);
    if (code == FD_OK) code = put_norm(&m, "output_norm.weight");
    if (code == FD_OK && !s->tied) code = put_matrix(&m, "output.weight", s->embd, s->vocab, true);
    if (code == FD_OK) code = fd_gguf_write(m.writer, o->out, err);
    fd_gguf_writer_free(m.writer);
    free(m.all);
    return code;
}

/* ---- the command line ---- */

static int positive(const char *text, struct argp_state *state) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < 1 || value > 1 << 24) argp_error(state, "%s: expected a number from 1 to %d", text, 1 << 24);
    return (int)value;
}

static void check(const options *o, struct argp_state *state) {
    const shape_of_model *s = &o->shape;
    if (!o->out) argp_error(state, "expected the file to write");
    if (strcmp(s->arch, "llama") != 0 && strcmp(s->arch, "qwen2") != 0)
        argp_error(state, "--arch %s: expected llama or qwen2", s->arch);
    const int block = o->mixed ? 32 : fd_dtype_get(o->dtype)->block_elements;
    if (s->embd % block || s->ff % block)
        argp_error(state, "--embd %d, --ff %d: expected multiples of %d", s->embd, s->ff, block);
    if (s->embd % s->heads || s->embd / s->heads % 2)
        argp_error(state, "--embd %d, --heads %d: expected an even number of dimensions a head", s->embd, s->heads);
    if (s->heads % s->kv_heads)
        argp_error(state, "--kv-heads %d: expected a divisor of %d heads", s->kv_heads, s->heads);
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    shape_of_model *s = &o->shape;
    switch (key) {
    case 'a': s->arch = arg; return 0;
    case 'l': s->layers = positive(arg, state); return 0;
    case 'e': s->embd = positive(arg, state); return 0;
    case 'h': s->heads = positive(arg, state); return 0;
    case 'k': s->kv_heads = positive(arg, state); return 0;
    case 'f': s->ff = positive(arg, state); return 0;
    case 'v': s->vocab = positive(arg, state); return 0;
    case 'c': s->context = positive(arg, state); return 0;
    case 'T': s->tied = true; return 0;
    case 'L': o->layers_limit = positive(arg, state); return 0;
    case 's': o->seed = strtoull(arg, NULL, 10); return 0;
    case 't': {
        o->mixed = strcmp(arg, "Q4_K_M") == 0;
        int dtype = o->mixed ? FD_Q4_K : fd_dtype_parse(arg);
        if (dtype < 0 || !fd_can_dequantize((uint32_t)dtype) ||
            !(fd_can_quantize((uint32_t)dtype) || fd_dtype_get((uint32_t)dtype)->is_quantised))
            argp_error(
                state,
                "--type %s: expected F32, F16, BF16, a quantised type of a GGUF (Q4_0, IQ2_XS, MXFP4 …) or Q4_K_M",
                arg);
        o->dtype = (uint32_t)dtype;
        return 0;
    }
    case 'p':
        for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
            if (strcmp(arg, presets[i].name) == 0) {
                *s = presets[i].shape;
                return 0;
            }
        argp_error(state, "--preset %s: expected qwen2.5-0.5b, tinyllama-1.1b or llama-8b", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (o->out) argp_error(state, "%s: expected one file", arg);
        o->out = arg;
        return 0;
    case ARGP_KEY_END: check(o, state); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option described[] = {
    {"preset", 'p', "NAME", 0, "qwen2.5-0.5b, tinyllama-1.1b or llama-8b; options after it change it", 0},
    {"arch", 'a', "NAME", 0, "llama or qwen2 (with biases on Q, K and V)", 0},
    {"layers", 'l', "N", 0, "layers", 0},
    {"embd", 'e', "N", 0, "embedding length", 0},
    {"heads", 'h', "N", 0, "attention heads", 0},
    {"kv-heads", 'k', "N", 0, "K/V heads", 0},
    {"ff", 'f', "N", 0, "feed-forward length", 0},
    {"vocab", 'v', "N", 0, "vocabulary", 0},
    {"context", 'c', "N", 0, "trained context length", 0},
    {"tied", 'T', NULL, 0, "the output uses the embedding's matrix", 0},
    {"type", 't', "TYPE", 0, "of the matrices: F32, F16 (default), BF16, Q8_0, Q4_0, Q5_0, Q4_K, Q6_K, Q4_K_M", 0},
    {"seed", 's', "N", 0, "another seed, other weights", 0},
    {"layers-limit", 'L', "N", 0, "at most so many layers", 0},
    {0},
};

int main(int argc, char **argv) {
    argp_err_exit_status = 2;
    options o = {.shape = {"llama", 4, 256, 8, 4, 688, 1024, 2048, 1e4f, 1e-5f, false}, .dtype = FD_F16};
    const struct argp argp = {described, parse, "OUT.gguf", "Writes a model of random weights.", NULL, NULL, NULL};
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    fd_error err = {0};
    if (make(&o, &err) == FD_OK) return 0;
    fprintf(stderr, "make_model: %s\n", err.message);
    return fd_exit_status(err.code);
}

/* A small inference engine for llama and qwen2 GGUFs, as a person writes one: plain loops over floats, one thread. It
 * shares no code with firstdiff, only its trace library. Any of six bugs can be switched on. */
#ifndef ENGINE_H
#define ENGINE_H

#include <firstdiff_trace.h>
#include <stdbool.h>

#include "gguf.h"

typedef enum bug { /* each was made by somebody in earnest: docs/faults.md */
    BUG_NONE,
    BUG_ROPE_PAIRING, /* rotates (i, i + d/2) where the model wants (2i, 2i+1), or the other way round */
    BUG_EPS_OUTSIDE,  /* sqrt(mean) + eps for sqrt(mean + eps) */
    BUG_NO_BIAS,      /* Q, K and V without their bias (qwen2) */
    BUG_GQA_MODULO,   /* head h reads K/V head h % n for h / group */
    BUG_SHORT_READ,   /* half a byte for each element of a Q8_0 matrix */
    BUG_TRANSPOSED,   /* a matrix [out, in] indexed as [in, out] */
    N_BUG
} bug;
extern const char *const bug_names[N_BUG];

typedef struct layer {
    float *attn_norm, *q, *k, *v, *q_bias, *k_bias, *v_bias, *attn_output; /* biases NULL where the model has none */
    float *ffn_norm, *gate, *up, *down;
    float *k_cache, *v_cache; /* [n_ctx, n_head_kv, head_dim] */
} layer;

typedef struct model {
    gguf file;
    int is_qwen2;
    int n_layer, n_embd, n_ff, n_vocab, n_head, n_head_kv, head_dim, n_ctx;
    float eps, rope_base;
    const tensor *embedding;
    float *output_norm, *output;
    layer *layers;
    bug bug;
    fd_tracer *trace;
} model;

/* Records the weights that it loads. */
model model_load(const char *path, int n_ctx, bug bug, fd_tracer *trace);
/* Feeds `n` tokens at positions pos0 …, returns the logits of the last one. */
const float *forward(model *m, const int *tokens, int n, int pos0);

#endif

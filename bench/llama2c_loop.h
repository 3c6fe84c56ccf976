/* The peer of decode_cpu: a llama forward pass in the style of llama2.c, our own code: one thread team started per
 * matrix product, one running sum per output, angles computed where they are used, everything binary32. */
#ifndef FD_BENCH_LLAMA2C_LOOP_H
#define FD_BENCH_LLAMA2C_LOOP_H

#include "model/graph.h"

typedef struct llama2c_layer {
    const float *attn_norm, *wq, *wk, *wv, *wo; /* [dim]; [out][in] */
    const float *ffn_norm, *w_gate, *w_down, *w_up;
} llama2c_layer;

typedef struct llama2c {
    int dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len;
    float eps, rope_base;
    const float *embedding, *final_norm, *classifier; /* borrowed, like the layers' */
    llama2c_layer *layers;
    float *x, *xb, *xb2, *hb, *hb2, *q, *att, *logits; /* one position */
    float *key_cache, *value_cache;                    /* [layer][seq_len][kv_dim] */
} llama2c;

/* A llama of F32 tensors without biases and rope scaling; FD_ERR_UNSUPPORTED for any other. The GGUF must stay open. */
fd_code llama2c_open(const fd_gguf *gguf, const fd_hparams *hparams, int seq_len, llama2c *out, fd_error *err);
void llama2c_close(llama2c *model);

/* Logits [vocab_size] after `token` at `pos`; owned by the model. */
float *llama2c_forward(llama2c *model, int token, int pos);

#endif

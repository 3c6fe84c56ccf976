/* The blocks that dense decoder architectures share. */
#include "model/builder.h"

static int32_t project(fd_builder *b, int32_t layer, const char *name, int32_t x, int32_t n_head, fd_need bias) {
    int32_t node = fd_build_matmul(b, layer, name, name, x, n_head * b->h->head_dim, bias);
    return fd_build_heads(b, node, n_head);
}

int32_t fd_build_self_attention(fd_builder *b, int32_t layer, int32_t x, fd_need qkv_bias, int32_t rope_freqs) {
    const fd_hparams *h = b->h;
    int32_t norm = fd_build_rms_norm(b, layer, "attn_norm", x);
    int32_t q = project(b, layer, "attn_q", norm, h->n_head, qkv_bias);
    int32_t k = project(b, layer, "attn_k", norm, h->n_head_kv, qkv_bias);
    int32_t v = project(b, layer, "attn_v", norm, h->n_head_kv, qkv_bias);
    int32_t q_rope = fd_build_rope(b, layer, "attn_q_rope", q, rope_freqs);
    int32_t k_rope = fd_build_rope(b, layer, "attn_k_rope", k, rope_freqs);
    int32_t cache_k = fd_build_kv_write(b, layer, "cache_k", k_rope);
    int32_t cache_v = fd_build_kv_write(b, layer, "cache_v", v);
    int32_t scores = fd_build_attn_scores(b, layer, q_rope, cache_k);
    int32_t weights = fd_build_attn_softmax(b, layer, scores);
    int32_t out = fd_build_attn_mix(b, layer, weights, cache_v);
    int32_t proj = fd_build_matmul(b, layer, "attn_proj", "attn_output", out, h->n_embd, FD_OPTIONAL);
    return fd_build_add(b, layer, "ffn_inp", x, proj);
}

int32_t fd_build_swiglu(fd_builder *b, int32_t layer, int32_t x) {
    const fd_hparams *h = b->h;
    int32_t norm = fd_build_rms_norm(b, layer, "ffn_norm", x);
    int32_t gate = fd_build_matmul(b, layer, "ffn_gate", "ffn_gate", norm, h->n_ff, FD_OPTIONAL);
    int32_t up = fd_build_matmul(b, layer, "ffn_up", "ffn_up", norm, h->n_ff, FD_OPTIONAL);
    int32_t act = fd_build_silu_mul(b, layer, "ffn_act", gate, up);
    int32_t down = fd_build_matmul(b, layer, "ffn_down", "ffn_down", act, h->n_embd, FD_OPTIONAL);
    return fd_build_add(b, layer, "l_out", x, down);
}

void fd_build_logits(fd_builder *b, int32_t x) {
    int32_t norm = fd_build_rms_norm(b, -1, "output_norm", x);
    bool tied = fd_gguf_find_tensor(b->gguf, "output.weight") == NULL;
    fd_build_matmul(b, -1, "logits", tied ? "token_embd" : "output", norm, b->h->n_vocab, FD_OPTIONAL);
}

/* The blocks that decoder architectures share. */
#include "model/builder.h"

/* The projection to n_head heads, and where the architecture has it the norm of each head. */
static int32_t project(fd_builder *b, int32_t layer, const char *name, const char *norm, int32_t x, int32_t n_head,
                       const fd_attention_block *how) {
    int32_t node = fd_build_matmul(b, layer, name, name, x, n_head * b->h->head_dim, how->qkv_bias);
    fd_build_heads(b, node, n_head);
    return norm && how->qk_norm ? fd_build_rms_norm(b, layer, norm, norm, node) : node;
}

int32_t fd_build_attention(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *how) {
    const fd_hparams *h = b->h;
    int32_t q = project(b, layer, "attn_q", "attn_q_norm", x, h->n_head, how);
    int32_t k = project(b, layer, "attn_k", "attn_k_norm", x, h->n_head_kv, how);
    int32_t v = project(b, layer, "attn_v", NULL, x, h->n_head_kv, how);
    if (!how->no_rope) {
        q = fd_build_rope(b, layer, "attn_q_rope", q, how->rope_freqs);
        k = fd_build_rope(b, layer, "attn_k_rope", k, how->rope_freqs);
    }
    int32_t cache_k = fd_build_kv_write(b, layer, "cache_k", k);
    int32_t cache_v = fd_build_kv_write(b, layer, "cache_v", v);
    int32_t scores = fd_build_attn_scores(b, layer, q, cache_k, how);
    int32_t weights = fd_build_attn_softmax(b, layer, scores, how->sinks);
    int32_t out = fd_build_attn_mix(b, layer, weights, cache_v);
    return fd_build_matmul(b, layer, "attn_proj", "attn_output", out, h->n_embd, FD_OPTIONAL);
}

int32_t fd_build_ffn(fd_builder *b, int32_t layer, int32_t x, fd_op activation) {
    const fd_hparams *h = b->h;
    int32_t gate = fd_build_matmul(b, layer, "ffn_gate", "ffn_gate", x, h->n_ff, FD_OPTIONAL);
    int32_t up = fd_build_matmul(b, layer, "ffn_up", "ffn_up", x, h->n_ff, FD_OPTIONAL);
    int32_t act = fd_build_gated(b, layer, "ffn_act", activation, gate, up);
    return fd_build_matmul(b, layer, "ffn_down", "ffn_down", act, h->n_embd, FD_OPTIONAL);
}

int32_t fd_build_pre_norm_attention(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *how) {
    int32_t norm = fd_build_rms_norm(b, layer, "attn_norm", "attn_norm", x);
    return fd_build_add(b, layer, "ffn_inp", x, fd_build_attention(b, layer, norm, how));
}

int32_t fd_build_swiglu(fd_builder *b, int32_t layer, int32_t x) {
    int32_t norm = fd_build_rms_norm(b, layer, "ffn_norm", "ffn_norm", x);
    return fd_build_add(b, layer, "l_out", x, fd_build_ffn(b, layer, norm, FD_OP_SILU_MUL));
}

static int32_t output(fd_builder *b, const char *name, int32_t x) {
    int32_t norm = fd_build_rms_norm(b, -1, "output_norm", "output_norm", x);
    bool tied = fd_gguf_find_tensor(b->gguf, "output.weight") == NULL;
    return fd_build_matmul(b, -1, name, tied ? "token_embd" : "output", norm, b->h->n_vocab, FD_OPTIONAL);
}

void fd_build_logits(fd_builder *b, int32_t x) {
    output(b, "logits", x);
}

void fd_build_capped_logits(fd_builder *b, int32_t x, float cap) {
    fd_build_softcap(b, -1, "logits", output(b, "logits_raw", x), cap);
}

void fd_build_scaled_logits(fd_builder *b, int32_t x, float factor) {
    fd_build_scale(b, -1, "logits", output(b, "logits_raw", x), factor);
}

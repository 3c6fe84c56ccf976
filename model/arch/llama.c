/* llama: Llama 1–3, TinyLlama, Mistral, stories… Pre-norm, GQA, SwiGLU, RoPE on neighbouring pairs. Mixtral is a llama
 * with experts. */
#include "model/builder.h"

static int32_t mixture(fd_builder *b, int32_t layer, int32_t x) {
    const fd_experts_block experts = {
        .gating = FD_GATING_NORMALISED, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    int32_t norm = fd_build_rms_norm(b, layer, "ffn_norm", "ffn_norm", x);
    int32_t out = fd_build_experts(b, layer, norm, &experts);
    return fd_build_add(b, layer, "l_out", x, out);
}

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_rope_factors(b);
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        x = b->h->n_expert > 0 ? mixture(b, layer, x) : fd_build_swiglu(b, layer, x);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_llama = {"llama", FD_ROPE_INTERLEAVED, list, FD_READS_EXPERTS | FD_READS_EXPERT_NORM};

/* llama: Llama 1–3, TinyLlama, Mistral, stories… Pre-norm, GQA, SwiGLU, RoPE on neighbouring pairs. Mixtral is a llama
 * with experts. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_experts_block experts = {
        .gating = FD_GATING_NORMALISED, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_rope_factors(b);
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, &experts);
}

const fd_arch fd_arch_llama = {
    .name = "llama",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_NORM,
    .rope_whole = true,
};

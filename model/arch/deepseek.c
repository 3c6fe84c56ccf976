/* deepseek: DeepSeek MoE 16B. As llama, but after the first layers a mixture of experts, weighted by their
 * probabilities as they are, and experts that every token uses.
 * Source: Dai et al., DeepSeekMoE, 2024 (modeling_deepseek.py). */
#include "model/builder.h"

static int32_t mixture(fd_builder *b, int32_t layer, int32_t x) {
    const fd_experts_block how = {.gating = b->h->expert_norm ? FD_GATING_NORMALISED : FD_GATING_GATHER,
                                  .activation = FD_OP_SILU_MUL,
                                  .bias = FD_OPTIONAL};
    int32_t norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
    int32_t out = fd_build_experts(b, layer, norm, &how);
    if (b->h->n_ff_shared > 0) out = fd_build_shared_experts(b, layer, norm, out, false);
    return fd_build_add(b, layer, "l_out", x, out);
}

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        bool dense = layer < b->h->n_layer_dense || b->h->n_expert == 0;
        x = dense ? fd_build_swiglu(b, layer, x) : mixture(b, layer, x);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_deepseek = {
    .name = "deepseek",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS | FD_READS_DENSE_LAYERS,
    .norm = FD_NORM_RMS,
    .made_keys =
        "block_count=3 leading_dense_block_count=1 expert_count=4 expert_used_count=2 expert_feed_forward_length=256 "
        "expert_shared_count=1 expert_weights_scale=1.0",
};

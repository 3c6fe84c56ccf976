/* deepseek: DeepSeek MoE 16B. As llama, but after the first layers a mixture of experts, weighted by their
 * probabilities as they are, and experts that every token uses.
 * Source: Dai et al., DeepSeekMoE, 2024 (modeling_deepseek.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    const fd_experts_block experts = {.gating = FD_GATING_GATHER, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, &experts);
}

const fd_arch fd_arch_deepseek = {
    .name = "deepseek",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_SCALE | FD_READS_SHARED_EXPERTS | FD_READS_DENSE_LAYERS,
    .norm = FD_NORM_RMS,
    .made_keys =
        "block_count=3 leading_dense_block_count=1 expert_count=4 expert_used_count=2 expert_feed_forward_length=256 "
        "expert_shared_count=1 expert_weights_scale=1.0",
};

/* olmoe: pre-norm attention with whole rows of Q and K normed, and a mixture of experts weighted by their
 * probabilities as they are; RoPE on halves.
 * Source: AI2, OLMoE, 2024, and transformers' OlmoeModel (norm_topk_prob false). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {
        .qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .qk_norm_row = true};
    const fd_experts_block experts = {.gating = FD_GATING_GATHER, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, &experts);
}

const fd_arch fd_arch_olmoe = {
    .name = "olmoe",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS,
    .norm = FD_NORM_RMS,
    .made_keys = "attention.head_count_kv=heads expert_count=4 expert_used_count=2",
    .made_untied = true,
    .kv_each = true,
};

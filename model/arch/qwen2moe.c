/* qwen2moe: Qwen 1.5 and 2 MoE. qwen2's attention, experts weighted by their probabilities as they are, and a shared
 * expert behind a sigmoid of its own.
 * Source: Qwen team, 2024, and transformers' Qwen2MoeModel (norm_topk_prob false). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_REQUIRED, .rope_freqs = FD_NO_ROPE_FACTORS};
    const fd_experts_block experts = {
        .gating = FD_GATING_GATHER, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL, .shared_gated = true};
    fd_default_expert_length(b);
    if (b->h->n_ff_shared == 0) b->graph->hparams.n_ff_shared = b->h->n_ff;
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, &experts);
}

const fd_arch fd_arch_qwen2moe = {
    .name = "qwen2moe",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_SHARED_EXPERTS,
    .norm = FD_NORM_RMS,
    .made_keys =
        "expert_count=4 expert_used_count=2 expert_feed_forward_length=256 expert_shared_feed_forward_length=256",
    .made_untied = true,
};

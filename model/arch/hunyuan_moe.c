/* hunyuan-moe: Hunyuan A13B. hunyuan-dense's attention; every layer a mixture of experts, weighted by their share of
 * the chosen ones' probabilities, and a shared expert.
 * Source: Tencent, Hunyuan-A13B, 2025, and transformers' HunYuanMoEV1Model. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .qk_norm_after = true};
    attention.rope_freqs = fd_build_rope_factors(b);
    const fd_experts_block experts = {
        .gating = FD_GATING_NORMALISED, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    if (b->h->n_ff_shared == 0) b->graph->hparams.n_ff_shared = b->h->n_ff;
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, &experts);
}

const fd_arch fd_arch_hunyuan_moe = {
    .name = "hunyuan-moe",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_SHARED_EXPERTS,
    .norm = FD_NORM_RMS,
    .made_keys = "feed_forward_length=256 expert_count=4 expert_used_count=2 expert_feed_forward_length=ff "
                 "expert_shared_feed_forward_length=256",
};

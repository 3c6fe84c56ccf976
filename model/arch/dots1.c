/* dots1 (dots.llm1) and bailingmoe2 (Ling 2.0, Ring): heads of Q and K normed before they are rotated; after the first
 * layers a mixture of experts chosen by a sigmoid and a bias that only the choice sees, and a shared expert; RoPE on
 * halves, in bailingmoe2 of a part of each head.
 * Source: rednote-hilab, dots.llm1, 2025, transformers' Dots1Model; inclusionAI, Ling 2.0, 2025
 * (modeling_bailing_moe_v2.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .qk_norm = true};
    const fd_experts_block experts = fd_experts_of_file(b);
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, &experts);
}

/* Its expert_shared_feed_forward_length, where the file has one, is that of each. */
static void list_bailing(fd_builder *b) {
    int32_t n = 1, each = 0;
    fd_code code = fd_key_i32(b->keys, "expert_shared_count", 0, 0, 4096, &n);
    if (code == FD_OK) code = fd_key_i32(b->keys, "expert_shared_feed_forward_length", 0, 0, 1 << 24, &each);
    if (code != FD_OK) fd_builder_set_error(b, code);
    b->graph->hparams.n_ff_shared = n * (each > 0 ? each : b->h->n_ff_expert);
    list(b);
}

const fd_arch fd_arch_dots1 = {
    .name = "dots1",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_SCALE | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS |
             FD_READS_DENSE_LAYERS,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=3 attention.head_count_kv=heads leading_dense_block_count=1 expert_count=4 "
                 "expert_used_count=2 expert_feed_forward_length=256 expert_shared_count=1 expert_weights_norm=true "
                 "expert_gating_func=2 expert_weights_scale=2.5",
    .made_with = "exp_probs_b.bias",
    .made_untied = true,
    .kv_each = true,
};
const fd_arch fd_arch_bailingmoe2 = {
    .name = "bailingmoe2",
    .rope_pairing = FD_ROPE_HALF,
    .list = list_bailing,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_SCALE | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS |
             FD_READS_DENSE_LAYERS,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=3 rope.dimension_count=16&head leading_dense_block_count=1 expert_count=8 "
                 "expert_used_count=3 expert_feed_forward_length=256 expert_shared_feed_forward_length=128 "
                 "expert_shared_count=2 expert_weights_norm=true expert_gating_func=2 expert_weights_scale=2.5 "
                 "expert_group_count=4 expert_group_used_count=2",
    .made_with = "attn_qkv.weight exp_probs_b.bias",
    .made_untied = true,
};

/* bailingmoe: Ling and Ring, the first. As deepseek in every layer, with scores divided by the root of the rotated part
 * of a head.
 * Source: inclusionAI, Ling, 2025 (modeling_bailing_moe.py). */
#include <math.h>

#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .scale = 1.0f / sqrtf((float)b->h->rope.n_rot)};
    attention.rope_freqs = fd_build_rope_factors(b);
    fd_experts_block experts = fd_experts_of_file(b);
    experts.sigmoid = false;
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, &experts);
}

const fd_arch fd_arch_bailingmoe = {
    .name = "bailingmoe",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_SCALE | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS,
    .norm = FD_NORM_RMS,
    .made_keys = "expert_count=4 expert_used_count=2 expert_feed_forward_length=256 expert_shared_count=1 "
                 "expert_weights_norm=true",
    .made_untied = true,
};

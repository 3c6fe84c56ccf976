/* minimax-m2: MiniMax M2. Whole rows of Q and K normed, RoPE on halves of a part of each head, experts chosen by a
 * sigmoid and a bias that only the choice sees, weighted by their share of the chosen ones' probabilities.
 * Source: MiniMax, M2, 2025, and transformers' MiniMaxM2Model. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {
        .qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .qk_norm_row = true};
    fd_experts_block experts = fd_experts_of_file(b);
    experts.gating = FD_GATING_NORMALISED;
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, &experts);
}

const fd_arch fd_arch_minimax_m2 = {
    .name = "minimax-m2",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_NORM,
    .norm = FD_NORM_RMS,
    .made_keys = "rope.dimension_count=16&head expert_count=4 expert_used_count=2 expert_gating_func=2 "
                 "feed_forward_length=256 expert_feed_forward_length=ff",
    .made_with = "exp_probs_b.bias",
    .made_untied = true,
};

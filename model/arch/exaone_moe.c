/* exaone-moe: K-EXAONE. Heads of Q and K normed; three layers of four have a sliding window, the fourth rotates nothing;
 * after the first layers a mixture of experts chosen by a sigmoid and a bias that only the choice sees, and a shared
 * expert. Pre-norm, other than exaone4.
 * Source: LG AI Research, K-EXAONE, 2026, and transformers' ExaoneMoeModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_windows windows = fd_read_windows(b, 128, 4);
    const fd_experts_block experts = fd_experts_of_file(b);
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .qk_norm = true};
    attention.rope_freqs = fd_build_rope_factors(b);
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        attention.window = fd_window_of(&windows, layer);
        attention.no_rope = !fd_is_windowed(&windows, layer);
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        int32_t norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
        x = fd_build_add(b, layer, "l_out", x, fd_build_mixture(b, layer, norm, &experts));
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_exaone_moe = {
    .name = "exaone-moe",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_SCALE | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS |
             FD_READS_DENSE_LAYERS,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=4 attention.sliding_window=16 leading_dense_block_count=1 expert_count=4 "
                 "expert_used_count=2 expert_feed_forward_length=256 expert_shared_count=1 expert_weights_norm=true "
                 "expert_gating_func=2 expert_weights_scale=2.5",
    .made_with = "exp_probs_b.bias",
    .made_untied = true,
};

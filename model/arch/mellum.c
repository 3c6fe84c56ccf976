/* mellum: Mellum 2. qwen3moe's attention and experts; three layers of four have a sliding window, whose RoPE is not
 * scaled.
 * Source: JetBrains, Mellum2-12B-A2.5B, 2026 (modeling_mellum.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_windows windows = fd_read_windows(b, 0, 4);
    const fd_experts_block experts = {
        .gating = FD_GATING_NORMALISED, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    fd_rope unscaled = b->h->rope;
    unscaled.scaling = FD_ROPE_SCALING_NONE;
    unscaled.attention_factor = 1;
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .qk_norm = true};
    fd_default_expert_length(b);
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        attention.window = fd_window_of(&windows, layer);
        attention.rope = attention.window ? &unscaled : NULL;
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        int32_t norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
        x = fd_build_add(b, layer, "l_out", x, fd_build_mixture(b, layer, norm, &experts));
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_mellum = {
    .name = "mellum",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_NORM,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=4 attention.sliding_window=16 attention.sliding_window_pattern=1,1,1,0,.. expert_count=4 "
                 "expert_used_count=2 expert_feed_forward_length=256",
    .made_untied = true,
};

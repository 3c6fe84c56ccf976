/* olmo2: OLMo 2 and 3. No norm before the blocks, one after each; whole rows of Q and K normed; RoPE on halves. OLMo
 * 3 has a sliding window in three layers of four, whose RoPE is not scaled.
 * Source: AI2, 2 OLMo 2 Furious, 2024, and transformers' Olmo2Model and Olmo3Model. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_windows windows = fd_read_windows(b, 0, 4);
    fd_rope unscaled = b->h->rope;
    unscaled.scaling = FD_ROPE_SCALING_NONE;
    unscaled.attention_factor = 1;
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .qk_norm_row = true};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        attention.window = fd_window_of(&windows, layer);
        attention.rope = attention.window ? &unscaled : NULL;
        x = fd_build_post_norm_layer(b, layer, x, &attention, FD_OP_SILU_MUL, false);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_olmo2 = {
    .name = "olmo2",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .made_untied = true,
};

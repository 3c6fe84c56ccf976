/* starcoder2: LayerNorm, biases, GELU in its tanh form, RoPE on halves.
 * Source: BigCode, StarCoder 2, 2024, and transformers' Starcoder2Model. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        x = fd_build_pre_norm_ffn(b, layer, x, FD_OP_GELU);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_starcoder2 = {
    .name = "starcoder2",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_LAYER,
    .made_with = FD_EVERY_BIAS,
};

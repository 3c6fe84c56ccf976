/* orion: as llama, with LayerNorm and RoPE on halves.
 * Source: OrionStar, Orion-14B, 2024 (modeling_orion.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        x = fd_build_pre_norm_ffn(b, layer, x, FD_OP_SILU_MUL);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_orion = {
    .name = "orion",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_LAYER,
    .made_with = FD_NORM_BIASES,
};

/* orion: as llama, with LayerNorm and RoPE on halves.
 * Source: OrionStar, Orion-14B, 2024 (modeling_orion.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_orion = {
    .name = "orion",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_LAYER,
    .made_with = FD_NORM_BIASES,
    .made_untied = true,
};

/* starcoder2 and codeshell: LayerNorm, biases, GELU in its tanh form, RoPE on halves. Files of codeshell may hold Q, K
 * and V in one matrix.
 * Source: BigCode, StarCoder 2, 2024, and transformers' Starcoder2Model; WisdomShell, CodeShell, 2023
 * (modeling_codeshell.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    fd_build_pre_norm_model(b, &attention, FD_OP_GELU, NULL);
}

const fd_arch fd_arch_starcoder2 = {
    .name = "starcoder2",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_LAYER,
    .made_with = FD_EVERY_BIAS,
};
const fd_arch fd_arch_codeshell = {
    .name = "codeshell",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_LAYER,
    .made_with = FD_EVERY_BIAS " attn_qkv.weight",
    .made_untied = true,
};

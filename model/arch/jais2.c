/* jais2: Jais 2. LayerNorm and biases everywhere, RoPE on halves, a squared ReLU without a gate.
 * Source: Inception, MBZUAI and Cerebras, Jais 2, 2025, and transformers' Jais2Model. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    fd_build_pre_norm_model(b, &attention, FD_OP_RELU_SQUARED, NULL);
}

const fd_arch fd_arch_jais2 = {
    .name = "jais2",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_LAYER,
    .made_with = FD_EVERY_BIAS,
};

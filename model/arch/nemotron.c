/* nemotron: Nemotron-4 and Minitron. LayerNorm (the file's weights hold 1 + w already), a squared ReLU without a
 * gate, RoPE on halves of a part of each head.
 * Source: NVIDIA, Nemotron-4, 2024, and transformers' NemotronModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    fd_build_pre_norm_model(b, &attention, FD_OP_RELU_SQUARED, NULL);
}

const fd_arch fd_arch_nemotron = {
    .name = "nemotron",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_LAYER,
    .made_keys = "rope.dimension_count=32&head",
    .made_with = FD_NORM_BIASES,
    .made_untied = true,
};

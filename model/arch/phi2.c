/* phi2: Phi 1.5 and 2. Attention and FFN read the same LayerNorm; biases everywhere, that of the logits too; GELU in
 * its tanh form; RoPE on halves of a part of each head.
 * Source: Microsoft, Phi-2, 2023, and transformers' PhiModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++)
        x = fd_build_parallel_layer(b, layer, x, &attention, FD_OP_GELU);
    fd_build_logits(b, x);
}

const fd_arch fd_arch_phi2 = {
    .name = "phi2",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_LAYER,
    .made_keys = "rope.dimension_count=32&head",
    .made_with = FD_EVERY_BIAS " attn_qkv.weight output.bias",
    .made_untied = true,
};

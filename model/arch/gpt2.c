/* gpt2: GPT-2 and its kin. A learned position is added to the embedding, LayerNorm before each block, Q, K and V from
 * one matrix, GELU in its tanh form, biases everywhere.
 * Source: Radford et al., 2019, and transformers' GPT2Model. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .no_rope = true};
    int32_t x = fd_build_embed(b, "token_embd");
    x = fd_build_add_position(b, "inp_pos", "position_embd", x);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        x = fd_build_pre_norm_ffn(b, layer, x, FD_OP_GELU);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_gpt2 = {
    .name = "gpt2",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_LAYER,
    .made_with = FD_EVERY_BIAS " attn_qkv.weight",
};

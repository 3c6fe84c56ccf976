/* gpt2: GPT-2 and its kin. A learned position is added to the embedding, LayerNorm before each block, Q, K and V from
 * one matrix, GELU in its tanh form, biases everywhere. starcoder, the first, is a gpt2 whose heads share one K and V.
 * Source: Radford et al., 2019, BigCode, 2023, and transformers' GPT2Model and GPTBigCodeModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .no_rope = true};
    int32_t x = fd_build_embed(b);
    x = fd_build_add_position(b, x);
    fd_build_logits(b, fd_build_pre_norm_layers(b, x, &attention, FD_OP_GELU, NULL));
}

const fd_arch fd_arch_gpt2 = {
    .name = "gpt2",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_LAYER,
    .made_with = FD_EVERY_BIAS " attn_qkv.weight",
};
const fd_arch fd_arch_starcoder = {
    .name = "starcoder",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_LAYER,
    .made_keys = "attention.head_count_kv=1",
    .made_with = FD_EVERY_BIAS " attn_qkv.weight",
};

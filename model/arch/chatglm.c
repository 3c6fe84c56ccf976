/* chatglm: ChatGLM 2 and 3, GLM-4 of 2024. As llama, with Q, K and V and their biases from one matrix, gate and up from
 * another, and RoPE on pairs of half of each head.
 * Source: Zhipu AI, ChatGLM, 2023 (modeling_chatglm.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_chatglm = {
    .name = "chatglm",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .rope_rows_kept = true,
    .list = list,
    .norm = FD_NORM_RMS,
    .made_keys = "rope.dimension_count=32&head",
    .made_with = "attn_qkv.weight attn_qkv.bias ffn_up.weight",
};

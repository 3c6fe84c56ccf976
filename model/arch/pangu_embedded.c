/* pangu-embedded: openPangu Embedded. As llama, with biases in attention and RoPE on halves.
 * Source: Huawei, openPangu-Embedded, 2025 (modeling_openpangu_dense.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_pangu_embedded = {
    .name = "pangu-embedded",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_RMS,
    .made_with = "attn_q.bias attn_k.bias attn_v.bias attn_output.bias",
};

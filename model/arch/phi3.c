/* phi3: Phi 3, 3.5 and 4. Q, K and V from one matrix, gate and up from another, RoPE on halves with LongRoPE's factors
 * where the file has them, a sliding window where it names one (llama.cpp leaves that out).
 * Source: Microsoft, Phi-3, 2024, and transformers' Phi3Model. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_rope_factors(b);
    fd_code code = fd_key_i32(b->keys, "attention.sliding_window", 0, 0, INT32_MAX, &attention.window);
    if (code != FD_OK) fd_builder_set_error(b, code);
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_phi3 = {
    .name = "phi3",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_RMS,
    .made_with = "attn_qkv.weight ffn_up.weight",
};

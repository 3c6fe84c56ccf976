/* exaone: EXAONE 3 and 3.5. As llama, with RoPE on halves.
 * Source: LG AI Research, 2024 (modeling_exaone.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_rope_factors(b);
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_exaone = {"exaone", FD_ROPE_HALF, list, 0, FD_NORM_RMS};

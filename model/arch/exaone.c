/* exaone: EXAONE 3 and 3.5. As llama, with RoPE on halves.
 * Source: LG AI Research, 2024 (modeling_exaone.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_rope_factors(b);
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        x = fd_build_pre_norm_ffn(b, layer, x, FD_OP_SILU_MUL);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_exaone = {"exaone", FD_ROPE_HALF, list, 0, FD_NORM_RMS};

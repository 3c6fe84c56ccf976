/* plamo: PLaMo 13B. Attention and FFN read the same norm; RoPE on halves.
 * Source: Preferred Networks, PLaMo-13B, 2023 (modeling_plamo.py). */
#include "model/builder.h"

static int32_t layer_of(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *attention) {
    int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
    int32_t ffn_inp = fd_build_add(b, layer, "ffn_inp", x, fd_build_attention(b, layer, norm, attention));
    return fd_build_add(b, layer, "l_out", ffn_inp, fd_build_ffn(b, layer, norm, FD_OP_SILU_MUL));
}

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) x = layer_of(b, layer, x, &attention);
    fd_build_logits(b, x);
}

const fd_arch fd_arch_plamo = {"plamo", FD_ROPE_HALF, list, 0, FD_NORM_RMS};

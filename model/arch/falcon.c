/* falcon: attention and FFN read the same LayerNorm, or one each (attn_norm_2 is attention's then); Q, K and V from one
 * matrix, GELU in its tanh form, RoPE on halves.
 * Source: TII, Falcon, 2023, and transformers' FalconModel. */
#include "model/builder.h"

/* x + attention + FFN: both read the stream's norm, or attention one of its own. */
static int32_t layer_of(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *attention) {
    int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
    bool two = fd_build_has(b, 0, "attn_norm_2.weight");
    int32_t of_attention = two ? fd_build_norm(b, layer, "attn_norm_2", "attn_norm_2", x) : norm;
    int32_t ffn_inp = fd_build_add(b, layer, "ffn_inp", x, fd_build_attention(b, layer, of_attention, attention));
    return fd_build_add(b, layer, "l_out", ffn_inp, fd_build_ffn(b, layer, norm, FD_OP_GELU));
}

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = layer_of(b, layer, x, &attention);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_falcon = {
    .name = "falcon",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_LAYER,
    .rope_whole = true,
    .made_with = FD_NORM_BIASES " attn_qkv.weight",
};

/* stablelm: LayerNorm, heads of Q and K normed with weights of their own where the file has them, RoPE on halves of a
 * part of each head. Without a norm of its own the FFN reads attention's, in parallel (StableLM 2 12B).
 * Source: Stability AI, 2023 and 2024, and transformers' StableLmModel. */
#include "model/builder.h"

static int32_t layer_of(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *attention) {
    bool own_norm = fd_build_has(b, 0, "ffn_norm.weight");
    int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
    int32_t ffn_inp = fd_build_add(b, layer, "ffn_inp", x, fd_build_attention(b, layer, norm, attention));
    if (own_norm) norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", ffn_inp);
    return fd_build_add(b, layer, "l_out", ffn_inp, fd_build_ffn(b, layer, norm, FD_OP_SILU_MUL));
}

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    attention.qk_norm = fd_build_has(b, 0, "attn_q_norm.weight");
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = layer_of(b, layer, x, &attention);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_stablelm = {
    .name = "stablelm",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_PARALLEL,
    .norm = FD_NORM_LAYER,
    .made_keys = "rope.dimension_count=16&head use_parallel_residual=false",
    .made_with = FD_NORM_BIASES " ffn_norm.weight",
    .made_untied = true,
};

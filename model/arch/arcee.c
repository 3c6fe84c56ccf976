/* arcee: AFM. As llama, with a squared ReLU in place of the gated FFN.
 * Source: transformers' ArceeModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_rope_factors(b);
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        x = fd_build_pre_norm_ffn(b, layer, x, FD_OP_RELU_SQUARED);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_arcee = {"arcee", FD_ROPE_INTERLEAVED, list, 0, FD_NORM_RMS};

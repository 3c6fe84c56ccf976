/* seed_oss: as llama with RoPE on halves; the norm before the FFN is post_attention_norm in the file. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        int32_t norm = fd_build_rms_norm(b, layer, "attn_post_norm", "post_attention_norm", x);
        x = fd_build_add(b, layer, "l_out", x, fd_build_ffn(b, layer, norm, FD_OP_SILU_MUL));
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_seed_oss = {"seed_oss", FD_ROPE_HALF, list, 0};

/* smollm3: as llama, but every fourth layer does not rotate Q and K. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        attention.no_rope = (layer + 1) % 4 == 0;
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        x = fd_build_pre_norm_ffn(b, layer, x, FD_OP_SILU_MUL);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_smollm3 = {
    .name = "smollm3",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .made_keys = "block_count=4",
};

/* plamo: PLaMo 13B. Attention and FFN read the same norm; RoPE on halves.
 * Source: Preferred Networks, PLaMo-13B, 2023 (modeling_plamo.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++)
        x = fd_build_parallel_layer(b, layer, x, &attention, FD_OP_SILU_MUL);
    fd_build_logits(b, x);
}

const fd_arch fd_arch_plamo = {
    .name = "plamo",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .made_untied = true,
};

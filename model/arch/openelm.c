/* openelm: OpenELM. As llama, with RoPE on halves, heads of Q and K normed before they are rotated, Q, K and V from one
 * matrix, and heads and an FFN whose numbers and length grow from layer to layer. The output is the embedding.
 * Source: Apple, OpenELM, 2024 (modeling_openelm.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_hparams widest = *b->h;
    const fd_hparams *h = &b->graph->hparams;
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .qk_norm = true};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < h->n_layer && b->code == FD_OK; layer++) {
        fd_read_layer_sizes(b, layer, &widest);
        if (h->n_head < 1 || h->n_head_kv < 1 || h->n_head % h->n_head_kv != 0)
            fd_builder_set_error(b,
                                 fd_fail(b->err, FD_ERR_INPUT,
                                         "keys openelm.attention.head_count*: layer %d has %d heads on %d K/V heads, "
                                         "expected a divisor",
                                         layer, h->n_head, h->n_head_kv));
        else
            x = fd_build_pre_norm_ffn(b, layer, fd_build_pre_norm_attention(b, layer, x, &attention), FD_OP_SILU_MUL);
    }
    fd_set_layer_sizes(b, &widest);
    fd_build_logits(b, x);
}

const fd_arch fd_arch_openelm = {
    .name = "openelm",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_LAYER_SIZES,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=3 attention.head_count=heads,2*heads,.. attention.head_count_kv=kv,2*kv,.. "
                 "feed_forward_length=ff,2*ff,.. attention.key_length=32 attention.value_length=32",
    .made_with = "attn_qkv.weight",
    .made_tied = true,
};

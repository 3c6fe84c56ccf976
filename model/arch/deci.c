/* deci: DeciLM and the Nemotrons that were cut from Llama 3 (51B, Super 49B, Ultra 253B). As llama, but the layers differ: in
 * heads of K and V and in the length of the FFN; some have one matrix in place of attention, others neither attention nor
 * its norm, others nothing at all. Heads of 0, K/V heads of 0 and a length of 0 in the file say so.
 * Source: Deci, DeciLM-7B, 2023; NVIDIA, Llama-3.1-Nemotron-51B, 2024 (modeling_decilm.py of both). */
#include "model/builder.h"

static int32_t attention_of(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *how) {
    if (b->h->n_head == 0) return x;
    int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
    int32_t branch = b->h->n_head_kv > 0
                         ? fd_build_attention(b, layer, norm, how)
                         : fd_build_matmul(b, layer, "attn_proj", "attn_output", norm, b->h->n_embd, FD_OPTIONAL);
    return fd_build_add(b, layer, "ffn_inp", x, branch);
}

static void list(fd_builder *b) {
    const fd_hparams widest = *b->h;
    const fd_hparams *h = &b->graph->hparams;
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_rope_factors(b);
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < h->n_layer && b->code == FD_OK; layer++) {
        fd_read_layer_sizes(b, layer, &widest);
        if ((h->n_head_kv > 0 && h->n_head % h->n_head_kv != 0) || (h->n_ff == 0 && h->n_head > 0))
            fd_builder_set_error(b,
                                 fd_fail(b->err, FD_ERR_UNSUPPORTED,
                                         "keys deci.attention.head_count*: layer %d has %d heads on %d, and an FFN of "
                                         "%d; expected a divisor, and no layer that attends alone",
                                         layer, h->n_head, h->n_head_kv, h->n_ff));
        x = attention_of(b, layer, x, &attention);
        if (h->n_ff > 0) x = fd_build_pre_norm_ffn(b, layer, x, FD_OP_SILU_MUL);
    }
    fd_set_layer_sizes(b, &widest);
    fd_build_logits(b, x);
}

const fd_arch fd_arch_deci = {
    .name = "deci",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .reads = FD_READS_LAYER_SIZES,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=5 attention.head_count=heads,heads,0,0,heads,.. attention.head_count_kv=kv,0,0,0,1,.. "
                 "feed_forward_length=ff,ff,ff,0,2*ff,..",
    .rope_whole = true,
};

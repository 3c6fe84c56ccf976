/* gptneox: GPT-NeoX and Pythia. Attention and FFN read a norm of the stream each, in parallel unless the file says
 * one after the other; Q, K and V from one matrix, biases, GELU in its tanh form, RoPE on halves of a part of each
 * head.
 * Source: EleutherAI, GPT-NeoX-20B, 2022, and transformers' GPTNeoXModel. */
#include "model/builder.h"

static int32_t layer_of(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *attention) {
    int32_t ffn_inp = fd_build_pre_norm_attention(b, layer, x, attention);
    int32_t norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", b->h->parallel_residual ? x : ffn_inp);
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

const fd_arch fd_arch_gptneox = {
    .name = "gptneox",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_PARALLEL,
    .norm = FD_NORM_LAYER,
    .made_keys = "use_parallel_residual=true rope.dimension_count=16&head",
    .made_with = FD_EVERY_BIAS " attn_qkv.weight",
    .made_untied = true,
};

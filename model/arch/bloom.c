/* bloom: the embedding is normed, attention is biased by distance (ALiBi) in place of any rotation, GELU in its tanh
 * form.
 * Source: BigScience, BLOOM, 2022, and transformers' BloomModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .no_rope = true};
    if (b->h->max_alibi_bias != 0.0f && b->h->max_alibi_bias != 8.0f)
        fd_builder_set_error(b,
                             fd_fail(b->err, FD_ERR_UNSUPPORTED, "key bloom.attention.max_alibi_bias: %g, expected 8",
                                     (double)b->h->max_alibi_bias));
    b->graph->hparams.max_alibi_bias = 8; /* most files leave it out */
    int32_t x = fd_build_embed(b);
    x = fd_build_norm(b, -1, "token_embd_norm", "token_embd_norm", x);
    fd_build_logits(b, fd_build_pre_norm_layers(b, x, &attention, FD_OP_GELU, NULL));
}

const fd_arch fd_arch_bloom = {
    .name = "bloom",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_ALIBI,
    .norm = FD_NORM_LAYER,
    .made_with = FD_EVERY_BIAS " attn_qkv.weight",
};

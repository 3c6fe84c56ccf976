/* glm4: GLM-4 0414. Norms before and after each block, gate and up from one matrix. RoPE on pairs of a part of each
 * head, or on halves where the file has the sections of M-RoPE; the positions of text are the same in all of these.
 * Source: transformers' Glm4Model and Glm4vTextModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    if (fd_read_rope_sections(b)) b->graph->hparams.rope.pairing = FD_ROPE_HALF;
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++)
        x = fd_build_post_norm_layer(b, layer, x, &attention, FD_OP_SILU_MUL, true);
    fd_build_logits(b, x);
}

const fd_arch fd_arch_glm4 = {
    .name = "glm4",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .rope_rows_kept = true,
    .list = list,
    .norm = FD_NORM_RMS,
    .made_keys = "rope.dimension_count=32&head",
    .made_with = "ffn_up.weight",
};

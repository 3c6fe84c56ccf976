/* baichuan: as llama; the 13B model, told by its 40 layers, has ALiBi in place of the rotation.
 * Source: Baichuan Inc., Baichuan 2, 2023 (modeling_baichuan.py of 7B and 13B). */
#include "model/builder.h"

static void list(fd_builder *b) {
    bool alibi = b->h->n_layer == 40;
    if (!alibi && b->h->n_layer != 32)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_UNSUPPORTED,
                                        "key baichuan.block_count: %d, expected 32 (7B, RoPE) or 40 (13B, ALiBi)",
                                        b->h->n_layer));
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .no_rope = alibi};
    if (alibi) b->graph->hparams.max_alibi_bias = 8;
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_baichuan = {
    .name = "baichuan",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=32 embedding_length=64 feed_forward_length=128",
    .made_untied = true,
};

/* mpt: LayerNorm, Q, K and V from one matrix, clamped where the file says so, ALiBi or a learned position in place of a
 * rotation, GELU in its tanh form. Norms of Q and K, and activations with scales (AWQ), are not implemented.
 * Source: MosaicML, MPT-7B, 2023, and transformers' MptModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .no_rope = true};
    if (fd_build_has(b, 0, "attn_q_norm.weight") || fd_build_has(b, 0, "ffn_act.scales"))
        fd_builder_set_error(
            b, fd_fail(b->err, FD_ERR_UNSUPPORTED, "weights attn_q_norm and ffn_act.scales: not implemented for mpt"));
    int32_t x = fd_build_embed(b);
    if (fd_build_has(b, -1, "position_embd.weight")) x = fd_build_add_position(b, x);
    fd_build_logits(b, fd_build_pre_norm_layers(b, x, &attention, FD_OP_GELU, NULL));
}

const fd_arch fd_arch_mpt = {
    .name = "mpt",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_ALIBI | FD_READS_CLAMP,
    .norm = FD_NORM_LAYER,
    .made_keys = "attention.max_alibi_bias=8.0 attention.clamp_kqv=2.0",
    .made_with = "attn_qkv.weight",
    .made_tied = true,
};

/* arctic: Snowflake Arctic. A dense FFN as wide as the stream after attention, and beside both a mixture of experts that
 * reads a norm of the layer's input (ffn_norm_exps).
 * Source: Snowflake, Arctic, 2024 (modeling_arctic.py). */
#include "model/builder.h"

static int32_t layer_of(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *attention, int32_t n_ff) {
    const fd_experts_block experts = {
        .gating = FD_GATING_NORMALISED, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    int32_t attended = fd_build_pre_norm_attention(b, layer, x, attention);
    int32_t norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", attended);
    b->graph->hparams.n_ff = b->h->n_embd;
    int32_t dense = fd_build_add(b, layer, "ffn_dense_out", attended, fd_build_ffn(b, layer, norm, FD_OP_SILU_MUL));
    b->graph->hparams.n_ff = n_ff;
    norm = fd_build_norm(b, layer, "ffn_norm_exps", "ffn_norm_exps", x);
    return fd_build_add(b, layer, "l_out", dense, fd_build_experts(b, layer, norm, &experts));
}

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) x = layer_of(b, layer, x, &attention, b->h->n_ff);
    fd_build_logits(b, x);
}

const fd_arch fd_arch_arctic = {
    .name = "arctic",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .reads = FD_READS_EXPERTS,
    .norm = FD_NORM_RMS,
    .made_keys = "expert_count=4 expert_used_count=2",
};

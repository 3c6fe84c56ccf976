/* dbrx: LayerNorm without biases, Q, K and V from one matrix and clamped, RoPE on halves, every layer a mixture of experts
 * weighted by their share of the chosen ones' probabilities. The norm before the experts is attn_output_norm in the file.
 * Source: Databricks, DBRX, 2024, and transformers' DbrxModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    const fd_experts_block experts = {
        .gating = FD_GATING_NORMALISED, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        int32_t norm = fd_build_norm(b, layer, "ffn_norm", "attn_output_norm", x);
        x = fd_build_add(b, layer, "l_out", x, fd_build_mixture(b, layer, norm, &experts));
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_dbrx = {
    .name = "dbrx",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_CLAMP,
    .norm = FD_NORM_LAYER,
    .made_keys = "attention.clamp_kqv=2.0 expert_count=4 expert_used_count=2",
    .made_with = "attn_qkv.weight",
    .made_untied = true,
};

/* jamba: layers without K/V heads are mamba's, with dt, B and C normed; the others attend and rotate nothing. Layers
 * that have a router have experts, weighted by their probabilities as they are.
 * Source: AI21, Jamba, 2024, and transformers' JambaModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_ssm ssm = fd_read_ssm(b);
    ssm.extras = FD_REQUIRED;
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .no_rope = true};
    const fd_experts_block experts = {.gating = FD_GATING_GATHER, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
        int32_t branch = fd_layer_has(b, layer, "attention.head_count_kv")
                             ? fd_build_attention(b, layer, norm, &attention)
                             : fd_build_mamba(b, layer, norm, &ssm);
        x = fd_build_add(b, layer, "ffn_inp", x, branch);
        norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
        int32_t ffn = fd_build_has(b, layer, "ffn_gate_inp.weight") ? fd_build_experts(b, layer, norm, &experts)
                                                                    : fd_build_ffn(b, layer, norm, FD_OP_SILU_MUL);
        x = fd_build_add(b, layer, "l_out", x, ffn);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_jamba = {
    .name = "jamba",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_HYBRID | FD_READS_EXPERTS,
    .norm = FD_NORM_RMS,
    .made_keys =
        "block_count=3 attention.head_count_kv=0,kv,0,.. ssm.conv_kernel=4 ssm.inner_size=2*embd ssm.state_size=16 "
        "ssm.time_step_rank=16 expert_count=4 expert_used_count=2",
    .made_with = "ssm_dt_norm.weight",
};

/* granite, granitemoe, granitehybrid (Granite 4, most of whose layers are mamba2's) and minicpm: as llama, with factors
 * on the embedding, on both branches, on the scores and on the logits. A factor of 1 has no node. */
#include "model/builder.h"

static int32_t scaled(fd_builder *b, int32_t layer, const char *name, int32_t x, float factor) {
    return factor == 1.0f ? x : fd_build_scale(b, layer, name, x, factor);
}

static void list_with(fd_builder *b, const fd_ssm *ssm) {
    const fd_hparams *h = b->h;
    const fd_experts_block experts = {
        .gating = FD_GATING_NORMALISED, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .scale = h->attn_scale, .no_rope = !h->rope_used};
    attention.rope_freqs = fd_build_rope_factors(b);
    int32_t x = scaled(b, -1, "token_embd_scaled", fd_build_embed(b), h->embedding_scale);
    for (int32_t layer = 0; layer < h->n_layer; layer++) {
        int32_t norm = fd_build_rms_norm(b, layer, "attn_norm", "attn_norm", x);
        int32_t branch = !ssm || fd_layer_has(b, layer, "attention.head_count_kv")
                             ? fd_build_attention(b, layer, norm, &attention)
                             : fd_build_mamba2(b, layer, norm, ssm);
        x = fd_build_add(b, layer, "ffn_inp", x, scaled(b, layer, "attn_proj_scaled", branch, h->residual_scale));
        norm = fd_build_rms_norm(b, layer, "ffn_norm", "ffn_norm", x);
        branch = fd_build_mixture(b, layer, norm, &experts);
        x = fd_build_add(b, layer, "l_out", x, scaled(b, layer, "ffn_down_scaled", branch, h->residual_scale));
    }
    if (h->logit_scale == 1.0f)
        fd_build_logits(b, x);
    else
        fd_build_scaled_logits(b, x, 1.0f / h->logit_scale);
}

static void list(fd_builder *b) {
    list_with(b, NULL);
}

static void list_hybrid(fd_builder *b) {
    const fd_ssm ssm = fd_read_ssm2(b);
    list_with(b, &ssm);
}

/* Older files of MiniCPM lack the factors, and engines fill in different ones. */
static void list_minicpm(fd_builder *b) {
    static const char *const keys[] = {"embedding_scale", "residual_scale", "logit_scale"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!fd_key_find(b->keys, keys[i]))
            fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT, "key minicpm.%s: missing", keys[i]));
    list(b);
}

const fd_arch fd_arch_granite = {
    .name = "granite",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .reads = FD_READS_SCALES | FD_READS_ATTENTION_SCALE | FD_READS_ROPE_SWITCH,
    .made_keys = "embedding_scale=12.0 residual_scale=0.22 logit_scale=8.0 attention.scale=0.0625",
};
const fd_arch fd_arch_minicpm = {
    .name = "minicpm",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list_minicpm,
    .reads = FD_READS_SCALES,
    .made_keys = "embedding_scale=12.0 residual_scale=0.22 logit_scale=8.0",
};
const fd_arch fd_arch_granitemoe = {
    .name = "granitemoe",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .reads =
        FD_READS_SCALES | FD_READS_ATTENTION_SCALE | FD_READS_EXPERTS | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS,
    .norm = FD_NORM_RMS,
    .made_keys = "embedding_scale=12.0 residual_scale=0.22 logit_scale=8.0 attention.scale=0.0625 expert_count=4 "
                 "expert_used_count=2 "
                 "expert_shared_feed_forward_length=256",
};
const fd_arch fd_arch_granitehybrid = {
    .name = "granitehybrid",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list_hybrid,
    .reads = FD_READS_SCALES | FD_READS_ATTENTION_SCALE | FD_READS_ROPE_SWITCH | FD_READS_EXPERTS |
             FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS | FD_READS_HYBRID,
    .norm = FD_NORM_RMS,
    .made_keys =
        "block_count=4 attention.head_count_kv=0,kv,0,0,.. embedding_scale=12.0 residual_scale=0.22 logit_scale=8.0 "
        "attention.scale=0.0625 ssm.conv_kernel=4 ssm.inner_size=2*embd ssm.state_size=32 ssm.time_step_rank=8&inner "
        "ssm.group_count=1",
};

/* falcon-h1: every layer attends and carries mamba2's state, side by side from one norm; their sum is added to the
 * stream. RoPE on halves. The file's weights hold the model's multipliers already.
 * Source: TII, Falcon-H1, 2025, and transformers' FalconH1Model. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_ssm ssm = fd_read_ssm2(b);
    ssm.extras = FD_OPTIONAL;
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_rope_factors(b);
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
        int32_t attended = fd_build_attention(b, layer, norm, &attention);
        int32_t both = fd_build_add(b, layer, "mixer_out", attended, fd_build_mamba2(b, layer, norm, &ssm));
        x = fd_build_add(b, layer, "ffn_inp", both, x);
        x = fd_build_pre_norm_ffn(b, layer, x, FD_OP_SILU_MUL);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_falcon_h1 = {
    .name = "falcon-h1",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_RMS,
    .made_keys =
        "ssm.conv_kernel=4 ssm.inner_size=2*embd ssm.state_size=32 ssm.time_step_rank=8&inner ssm.group_count=2",
    .made_with = "ffn_norm ssm_conv1d.bias ssm_norm.weight",
};

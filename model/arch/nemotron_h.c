/* nemotron_h and nemotron_h_moe: Nemotron-H, Nemotron Nano 2 and 3. A layer is one of attention without rotation, mamba2,
 * and an FFN: which, the file says by head_count_kv and feed_forward_length, one number a layer. The FFN is a squared
 * ReLU, in the second a mixture of such experts, chosen by a sigmoid and a bias that only the choice sees, and a shared
 * one.
 * Source: NVIDIA, Nemotron-H, 2025, and transformers' NemotronHModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_ssm ssm = fd_read_ssm2(b);
    ssm.extras = FD_OPTIONAL;
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .no_rope = true};
    fd_experts_block experts = fd_experts_of_file(b);
    experts.sigmoid = true;
    experts.activation = FD_OP_RELU_SQUARED;
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
        int32_t branch = fd_layer_has(b, layer, "feed_forward_length") ? fd_build_mixture(b, layer, norm, &experts)
                         : fd_layer_has(b, layer, "attention.head_count_kv")
                             ? fd_build_attention(b, layer, norm, &attention)
                             : fd_build_mamba2(b, layer, norm, &ssm);
        x = fd_build_add(b, layer, "l_out", x, branch);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_nemotron_h = {
    .name = "nemotron_h",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_HYBRID,
    .norm = FD_NORM_RMS,
    .made_keys = "attention.layer_norm_epsilon=1e-5 block_count=4 attention.head_count_kv=0,0,kv,0,.. "
                 "feed_forward_length=0,ff,0,ff,.. ssm.conv_kernel=4 "
                 "ssm.inner_size=2*embd ssm.state_size=32 ssm.time_step_rank=8&inner ssm.group_count=2",
    .made_with = "ssm_conv1d.bias ssm_norm.weight",
};
const fd_arch fd_arch_nemotron_h_moe = {
    .name = "nemotron_h_moe",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads =
        FD_READS_HYBRID | FD_READS_EXPERTS | FD_READS_EXPERT_SCALE | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS,
    .norm = FD_NORM_RMS,
    .made_keys = "attention.layer_norm_epsilon=1e-5 block_count=4 attention.head_count_kv=0,0,kv,0,.. "
                 "feed_forward_length=0,ff,0,ff,.. ssm.conv_kernel=4 "
                 "ssm.inner_size=2*embd ssm.state_size=32 ssm.time_step_rank=8&inner ssm.group_count=2 expert_count=4 "
                 "expert_used_count=2 expert_feed_forward_length=256 expert_shared_feed_forward_length=256 "
                 "expert_weights_norm=true expert_weights_scale=2.5",
    .made_with = "ssm_conv1d.bias ssm_norm.weight exp_probs_b.bias",
};

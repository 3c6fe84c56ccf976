/* gpt-oss: attention with sinks and biases, a sliding window in every other layer, a mixture of experts with biases
 * whose weights are a softmax over the chosen logits, and a clamped SwiGLU. The norm before the experts is
 * post_attention_norm in the file. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_windows windows = fd_read_windows(b, 4096, 2);
    const fd_rope local = fd_rope_of_windows(b, b->h->rope.base, true);
    fd_attention_block attention = {.qkv_bias = FD_REQUIRED, .rope_freqs = FD_NO_ROPE_FACTORS, .sinks = true};
    const fd_experts_block experts = {
        .gating = FD_GATING_SOFTMAX, .activation = FD_OP_SWIGLU_CLAMP, .bias = FD_REQUIRED};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        attention.window = fd_window_of(&windows, layer);
        attention.rope = attention.window ? &local : NULL;
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        int32_t norm = fd_build_rms_norm(b, layer, "attn_post_norm", "post_attention_norm", x);
        int32_t out = fd_build_experts(b, layer, norm, &experts);
        x = fd_build_add(b, layer, "l_out", x, out);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_gpt_oss = {
    .name = "gpt-oss",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS,
    .made_keys = "expert_count=4 expert_used_count=2 expert_feed_forward_length=256 attention.sliding_window=16",
    .made_with = "attn_output.bias",
    .made_untied = true,
};

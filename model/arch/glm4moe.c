/* glm4moe: GLM-4.5 and 4.6. Heads of Q and K normed where the file has the weights; after the first layers a mixture
 * of experts chosen by a sigmoid and a bias that only the choice sees, and a shared expert. The norm before the FFN
 * is post_attention_norm in the file.
 * Source: Zhipu AI, GLM-4.5, 2025, and transformers' Glm4MoeModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_read_rope_sections(b);
    fd_experts_block experts = fd_experts_of_file(b);
    experts.sigmoid = b->h->expert_gating != 1; /* where the file does not say, too */
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    attention.qk_norm = fd_build_has(b, 0, "attn_q_norm.weight");
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        int32_t norm = fd_build_norm(b, layer, "attn_post_norm", "post_attention_norm", x);
        x = fd_build_add(b, layer, "l_out", x, fd_build_mixture(b, layer, norm, &experts));
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_glm4moe = {
    .name = "glm4moe",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_SCALE | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS |
             FD_READS_DENSE_LAYERS,
    .norm = FD_NORM_RMS,
    .made_keys =
        "block_count=3 leading_dense_block_count=1 expert_count=4 expert_used_count=2 expert_feed_forward_length=256 "
        "expert_shared_count=1 expert_weights_norm=true expert_gating_func=2 expert_weights_scale=1.5 "
        "rope.dimension_count=32&head",
    .made_with = "exp_probs_b.bias attn_q.bias attn_k.bias attn_v.bias",
};

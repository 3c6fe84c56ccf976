/* afmoe: Trinity. The embedding times sqrt(n_embd), norms before and behind each block, heads of Q and K normed, the
 * output of attention gated by a matrix of its own; three layers of four have a sliding window, the fourth rotates
 * nothing; after the first layers a mixture of experts chosen by a sigmoid and a bias that only the choice sees, and shared
 * experts.
 * Source: Arcee AI, Trinity, 2025, and transformers' AfmoeModel. */
#include <math.h>

#include "model/builder.h"

enum { PERIOD = 4 };

static int32_t layer_of(fd_builder *b, int32_t layer, int32_t x, const fd_attention_block *attention,
                        const fd_experts_block *experts) {
    int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
    int32_t branch = fd_build_attention(b, layer, norm, attention);
    x = fd_build_add(b, layer, "ffn_inp", x, fd_build_norm(b, layer, "attn_post_norm", "post_attention_norm", branch));
    norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
    branch = fd_build_mixture(b, layer, norm, experts);
    return fd_build_add(b, layer, "l_out", x, fd_build_norm(b, layer, "ffn_post_norm", "post_ffw_norm", branch));
}

static void list(fd_builder *b) {
    const fd_windows windows = fd_read_windows(b, 0, PERIOD);
    const fd_rope local = fd_rope_of_windows(b, b->h->rope.base, true);
    fd_experts_block experts = fd_experts_of_file(b);
    experts.sigmoid = b->h->expert_gating != 1; /* where the file does not say, too */
    fd_attention_block attention = {
        .qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .qk_norm = true, .gated_apart = true};
    int32_t x = fd_build_scale(b, -1, "token_embd_scaled", fd_build_embed(b), sqrtf((float)b->h->n_embd));
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        attention.window = fd_window_of(&windows, layer);
        attention.rope = attention.window ? &local : NULL;
        attention.no_rope = layer % PERIOD == PERIOD - 1;
        x = layer_of(b, layer, x, &attention, &experts);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_afmoe = {
    .name = "afmoe",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_SCALE | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS |
             FD_READS_DENSE_LAYERS,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=4 attention.sliding_window=16 leading_dense_block_count=1 expert_count=4 "
                 "expert_used_count=2 expert_feed_forward_length=256 expert_shared_count=1 expert_weights_norm=true "
                 "expert_gating_func=2 expert_weights_scale=2.5",
    .made_with = "exp_probs_b.bias",
};

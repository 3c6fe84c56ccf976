/* command-r and cohere2 (Command R7B, A): attention and FFN read the same LayerNorm, which has no bias; Command R+
 * norms heads of Q and K, each with weights of its own. The output is the embedding, and logits are multiplied by
 * logit_scale.
 * Source: Cohere, 2024, and transformers' CohereModel and Cohere2Model. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    attention.qk_norm = fd_build_has(b, 0, "attn_q_norm.weight");
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++)
        x = fd_build_parallel_layer(b, layer, x, &attention, FD_OP_SILU_MUL);
    if (b->h->logit_scale == 1.0f)
        fd_build_logits(b, x);
    else
        fd_build_scaled_logits(b, x, b->h->logit_scale);
}

/* Three layers of four have a sliding window; the fourth sees everything and rotates nothing. */
static void list_cohere2(fd_builder *b) {
    const fd_windows windows = fd_read_windows(b, 0, 4);
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        attention.window = fd_window_of(&windows, layer);
        attention.no_rope = !fd_is_windowed(&windows, layer);
        x = fd_build_parallel_layer(b, layer, x, &attention, FD_OP_SILU_MUL);
    }
    fd_build_scaled_logits(b, x, b->h->logit_scale);
}

const fd_arch fd_arch_command_r = {
    .name = "command-r",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .rope_rows_kept = true,
    .list = list,
    .reads = FD_READS_LOGIT_SCALE,
    .norm = FD_NORM_LAYER,
    .made_keys = "logit_scale=0.0625",
    .made_tied = true,
};
const fd_arch fd_arch_cohere2 = {
    .name = "cohere2",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .rope_rows_kept = true,
    .list = list_cohere2,
    .reads = FD_READS_LOGIT_SCALE,
    .norm = FD_NORM_LAYER,
    .made_keys = "block_count=4 logit_scale=0.25 attention.sliding_window=16",
    .made_tied = true,
};

/* qwen3 and qwen3moe: as qwen2 without its biases, but the heads of Q and K are normed before they are rotated. The
 * mixture's experts are weighted by their share of the chosen ones' probabilities. qwen3vl and qwen3vlmoe are the same
 * for text: their interleaved M-RoPE turns every pair by the one position that a token of text has. (llama.cpp leaves
 * pairs past three times their section's size at position 0: of [24, 20, 20] the last two, 61 and 62.)
 * Source: Qwen team, Qwen3 and Qwen3-VL, 2025, and transformers' Qwen3Model, Qwen3MoeModel and Qwen3VLTextModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .qk_norm = true, .rope_freqs = FD_NO_ROPE_FACTORS};
    const fd_experts_block experts = {
        .gating = FD_GATING_NORMALISED, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    fd_default_expert_length(b);
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, &experts);
}

/* Images, which these ops do not see, add to the stream after the first n_deepstack_layers. */
static void list_with_images(fd_builder *b) {
    fd_read_rope_sections(b);
    fd_key_find(b->keys, "n_deepstack_layers");
    list(b);
}

const fd_arch fd_arch_qwen3 = {"qwen3", FD_ROPE_HALF, list, 0};
const fd_arch fd_arch_qwen3moe = {
    .name = "qwen3moe",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_NORM,
    .made_keys = "expert_count=4 expert_used_count=2 expert_feed_forward_length=256 expert_weights_norm=true",
};
const fd_arch fd_arch_qwen3vl = {
    .name = "qwen3vl",
    .rope_pairing = FD_ROPE_HALF,
    .list = list_with_images,
    .made_keys = "rope.dimension_sections=head/6,head/6,head-4/6,0 n_deepstack_layers=0",
};
const fd_arch fd_arch_qwen3vlmoe = {
    .name = "qwen3vlmoe",
    .rope_pairing = FD_ROPE_HALF,
    .list = list_with_images,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_NORM,
    .made_keys = "rope.dimension_sections=head/6,head/6,head-4/6,0 n_deepstack_layers=0 expert_count=4 "
                 "expert_used_count=2 "
                 "expert_feed_forward_length=256 expert_weights_norm=true",
};

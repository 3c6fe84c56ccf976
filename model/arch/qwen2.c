/* qwen2: Qwen 2 and 2.5. As llama, but Q, K and V have biases (large ones: -34 is normal) and RoPE rotates halves. The
 * same for text is qwen2vl: Qwen 2 and 2.5 VL, whose M-RoPE has sections. qwen, the first, has Q, K and V in one matrix
 * and half of the feed_forward_length that its file names.
 * Source: Qwen team, 2023 to 2025, transformers' Qwen2Model and Qwen2VLTextModel, modeling_qwen.py. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_REQUIRED, .rope_freqs = FD_NO_ROPE_FACTORS};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

static void list_with_images(fd_builder *b) {
    fd_read_rope_sections(b);
    list(b);
}

static void list_first(fd_builder *b) {
    b->graph->hparams.n_ff /= 2;
    list(b);
}

const fd_arch fd_arch_qwen2 = {"qwen2", FD_ROPE_HALF, list, 0};
const fd_arch fd_arch_qwen2vl = {
    .name = "qwen2vl",
    .rope_pairing = FD_ROPE_HALF,
    .list = list_with_images,
    .made_keys = "rope.dimension_sections=head/4,head/8,head/8,0",
};
const fd_arch fd_arch_qwen = {
    .name = "qwen",
    .rope_pairing = FD_ROPE_HALF,
    .list = list_first,
    .made_keys = "attention.head_count_kv=heads",
    .made_with = "attn_qkv.weight",
    .made_untied = true,
    .kv_each = true,
};

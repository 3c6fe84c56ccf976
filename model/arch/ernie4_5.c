/* ernie4_5: as llama; the dense ones. ernie4_5-moe has after the first layers, in every interleave_moe_layer_step-th, a
 * mixture of experts chosen with a bias that only the choice sees, and shared experts.
 * paddleocr, for text, is the dense one with RoPE on halves, in M-RoPE's sections.
 * Source: Baidu, ERNIE 4.5 and PaddleOCR-VL, 2025, and transformers' Ernie4_5Model and Ernie4_5_MoeModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

static void list_experts(fd_builder *b) {
    int32_t step = 1;
    fd_code code = fd_key_i32(b->keys, "interleave_moe_layer_step", 1, 1, 4096, &step);
    if (code != FD_OK) fd_builder_set_error(b, code);
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    const fd_experts_block experts = {
        .gating = FD_GATING_NORMALISED, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        int32_t norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
        int32_t ffn = (layer + 1) % step == 0 ? fd_build_mixture(b, layer, norm, &experts)
                                              : fd_build_ffn(b, layer, norm, FD_OP_SILU_MUL);
        x = fd_build_add(b, layer, "l_out", x, ffn);
    }
    fd_build_logits(b, x);
}

static void list_with_images(fd_builder *b) {
    fd_read_rope_sections(b);
    list(b);
}

const fd_arch fd_arch_paddleocr = {
    .name = "paddleocr",
    .rope_pairing = FD_ROPE_HALF,
    .list = list_with_images,
    .norm = FD_NORM_RMS,
    .made_keys = "rope.dimension_sections=head/4,head/8,head/8,0",
};
const fd_arch fd_arch_ernie4_5 = {
    .name = "ernie4_5",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .rope_rows_kept = true,
    .list = list,
    .norm = FD_NORM_RMS,
};
const fd_arch fd_arch_ernie4_5_moe = {
    .name = "ernie4_5-moe",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .rope_rows_kept = true,
    .list = list_experts,
    .reads = FD_READS_EXPERTS | FD_READS_SHARED_EXPERTS | FD_READS_DENSE_LAYERS,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=3 leading_dense_block_count=1 interleave_moe_layer_step=1 expert_count=4 "
                 "expert_used_count=2 expert_feed_forward_length=256 expert_shared_feed_forward_length=256",
    .made_with = "exp_probs_b.bias",
};

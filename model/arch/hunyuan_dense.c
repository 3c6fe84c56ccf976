/* hunyuan-dense: as llama, with RoPE on halves and heads of Q and K normed after they are rotated. hunyuan_vl is the same
 * for text; its M-RoPE has sections.
 * Source: Tencent, Hunyuan, 2025, and transformers' HunYuanDenseV1Model and HunYuanVLForConditionalGeneration. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {
        .qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .qk_norm_after = true};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

static void list_with_images(fd_builder *b) {
    fd_read_rope_sections(b);
    list(b);
}

const fd_arch fd_arch_hunyuan_dense = {"hunyuan-dense", FD_ROPE_HALF, list, 0, FD_NORM_RMS};
const fd_arch fd_arch_hunyuan_vl = {
    .name = "hunyuan_vl",
    .rope_pairing = FD_ROPE_HALF,
    .list = list_with_images,
    .norm = FD_NORM_RMS,
    .made_keys = "rope.dimension_sections=16,8,8,0",
};

/* hunyuan-dense: as llama, with RoPE on halves and heads of Q and K normed after they are rotated. hunyuan_vl is the same
 * for text; its M-RoPE has sections.
 * Source: Tencent, Hunyuan, 2025, and transformers' HunYuanDenseV1Model and HunYuanVLForConditionalGeneration. */
#include <math.h>

#include "model/builder.h"

/* Converters write the one expert of these models' configurations. */
static void list(fd_builder *b) {
    int32_t one;
    fd_code code = fd_key_i32(b->keys, "expert_count", 0, 0, 1, &one);
    if (code == FD_OK) code = fd_key_i32(b->keys, "expert_used_count", 0, 0, 1, &one);
    if (code != FD_OK) fd_builder_set_error(b, code);
    const fd_attention_block attention = {
        .qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .qk_norm_after = true};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

static void list_with_images(fd_builder *b) {
    double alpha = 0;
    fd_read_rope_sections(b);
    fd_code code = fd_key_f64(b->keys, "rope.scaling.alpha", 0.0, &alpha);
    if (code != FD_OK) fd_builder_set_error(b, code);
    const float dim = (float)b->h->head_dim;
    if (alpha > 0) /* of a longer context, in binary32 as llama.cpp has it */
        b->graph->hparams.rope.base = (double)((float)b->h->rope.base * powf((float)alpha, dim / (dim - 2)));
    list(b);
}

const fd_arch fd_arch_hunyuan_dense = {"hunyuan-dense", FD_ROPE_HALF, list, 0, FD_NORM_RMS};
const fd_arch fd_arch_hunyuan_vl = {
    .name = "hunyuan_vl",
    .rope_pairing = FD_ROPE_HALF,
    .list = list_with_images,
    .norm = FD_NORM_RMS,
    .made_keys = "rope.dimension_sections=head/4,head/8,head/8,0",
};

/* jais: LayerNorm, biases, Q, K and V from one matrix, ALiBi in place of a rotation, scores divided by the head's size
 * and not by its root, SwiGLU.
 * Source: Inception and Cerebras, Jais, 2023 (modeling_jais.py, mup_scale_qk_dot_by_d). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL,
                                          .rope_freqs = FD_NO_ROPE_FACTORS,
                                          .no_rope = true,
                                          .scale = 1.0f / (float)b->h->head_dim};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_jais = {
    .name = "jais",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_ALIBI,
    .norm = FD_NORM_LAYER,
    .made_keys = "attention.head_count_kv=heads attention.max_alibi_bias=8.0",
    .made_with = FD_EVERY_BIAS " attn_qkv.weight",
    .made_untied = true,
};

/* olmo: LayerNorm without weights, Q, K and V clamped where the file says so, else as llama.
 * Source: AI2, OLMo, 2024, and transformers' OlmoModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_olmo = {
    .name = "olmo",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .reads = FD_READS_CLAMP,
    .norm = FD_NORM_LAYER_PLAIN,
    .made_keys = "attention.clamp_kqv=2.0",
};

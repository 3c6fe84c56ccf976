/* refact: Refact 1.6B. As llama, with ALiBi of 8 in place of the rotation, and K and V of one head.
 * Source: Small Magellanic Cloud AI, Refact, 2023 (modeling_gpt_refact.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .no_rope = true};
    b->graph->hparams.max_alibi_bias = 8;
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_refact = {
    .name = "refact",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_RMS,
    .made_keys = "attention.head_count_kv=1",
};

/* xverse: as llama.
 * Source: XVERSE Technology, 2023 (modeling_xverse.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_xverse = {
    .name = "xverse",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .made_untied = true,
};

/* internlm2: as llama, without frequency factors. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_internlm2 = {
    .name = "internlm2",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .made_untied = true,
};

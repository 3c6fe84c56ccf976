/* maincoder: as llama, with heads of Q and K normed after they are rotated.
 * Source: Maincode, Maincoder-1B, 2025 (modelling_maincoder.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    const fd_attention_block attention = {
        .qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .qk_norm_after = true};
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_maincoder = {"maincoder", FD_ROPE_INTERLEAVED, list, 0, FD_NORM_RMS};

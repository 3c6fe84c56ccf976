/* nanbeige: Nanbeige 4. As llama; models whose layers run more than once (num_loops) are refused.
 * Source: Nanbeige, Nanbeige4-3B, 2025 (modeling_nanbeige.py). */
#include "model/builder.h"

static void list(fd_builder *b) {
    int32_t n_loops;
    bool skips;
    fd_code code = fd_key_i32(b->keys, "num_loops", 1, 1, 1, &n_loops);
    if (code == FD_OK) code = fd_key_bool(b->keys, "skip_loop_final_norm", false, &skips); /* between loops alone */
    if (code != FD_OK) fd_builder_set_error(b, code);
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_rope_factors(b);
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_nanbeige = {"nanbeige", FD_ROPE_INTERLEAVED, list, 0, FD_NORM_RMS};

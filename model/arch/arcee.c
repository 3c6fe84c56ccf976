/* arcee: AFM. As llama, with a squared ReLU in place of the gated FFN.
 * Source: transformers' ArceeModel. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_rope_factors(b);
    fd_build_pre_norm_model(b, &attention, FD_OP_RELU_SQUARED, NULL);
}

const fd_arch fd_arch_arcee = {"arcee", FD_ROPE_INTERLEAVED, list, 0, FD_NORM_RMS};

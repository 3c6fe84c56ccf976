/* mistral3: Ministral 3 and its relatives. As llama. */
#include <math.h>

#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_rope_factors(b);
    b->graph->hparams.temperature_length = (int32_t)fmin(b->h->rope.original_context, INT32_MAX);
    fd_build_pre_norm_model(b, &attention, FD_OP_SILU_MUL, NULL);
}

const fd_arch fd_arch_mistral3 = {"mistral3", FD_ROPE_INTERLEAVED, list,
                                  FD_READS_TEMPERATURE | FD_READS_YARN | FD_READS_YARN_LOG};

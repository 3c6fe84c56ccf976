/* gemma: the first Gemma. The embedding times sqrt(n_embd), a GELU-gated FFN; the file's norm weights hold 1 + w. */
#include <math.h>

#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b);
    x = fd_build_scale(b, -1, "token_embd_scaled", x, sqrtf((float)b->h->n_embd));
    fd_build_logits(b, fd_build_pre_norm_layers(b, x, &attention, FD_OP_GELU_MUL, NULL));
}

const fd_arch fd_arch_gemma = {
    .name = "gemma",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .made_tied = true,
};

/* internlm2: as llama, without frequency factors. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        x = fd_build_swiglu(b, layer, x);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_internlm2 = {"internlm2", FD_ROPE_INTERLEAVED, list, 0};

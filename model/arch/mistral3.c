/* mistral3: Ministral 3 and its relatives. As llama. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_rope_factors(b);
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        x = fd_build_swiglu(b, layer, x);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_mistral3 = {"mistral3", FD_ROPE_INTERLEAVED, list, FD_READS_TEMPERATURE};

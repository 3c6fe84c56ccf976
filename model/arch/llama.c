/* llama: Llama 1–3, TinyLlama, Mistral, stories… Pre-norm, GQA, SwiGLU, RoPE on neighbouring pairs. */
#include "model/builder.h"

static void list(fd_builder *b) {
    int32_t freqs = fd_build_weight(b, "rope_freqs.weight", 1, b->h->rope.n_rot / 2, FD_OPTIONAL);
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_self_attention(b, layer, x, FD_OPTIONAL, freqs);
        x = fd_build_swiglu(b, layer, x);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_llama = {"llama", FD_ROPE_INTERLEAVED, list};

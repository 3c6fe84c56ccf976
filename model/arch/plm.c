/* plm: PLM 1.8B. Latent attention (mla.c) with a whole Q, a squared ReLU without a gate.
 * Source: PLM Team, PLM: Efficient Peripheral Language Models, 2025 (modeling_plm.py). */
#include <math.h>

#include "model/builder.h"

static void list(fd_builder *b) {
    fd_mla mla = fd_read_mla(b);
    mla.how.scale = 1.0f / sqrtf((float)(mla.n_nope + mla.n_rope));
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
        x = fd_build_add(b, layer, "ffn_inp", x, fd_build_mla(b, layer, norm, &mla));
        x = fd_build_pre_norm_ffn(b, layer, x, FD_OP_RELU_SQUARED);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_plm = {
    .name = "plm",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .reads = FD_READS_VALUE_LENGTH,
    .norm = FD_NORM_RMS,
    .made_keys = "attention.head_count_kv=heads attention.kv_lora_rank=64 attention.key_length=48 "
                 "attention.value_length=40 rope.dimension_count=16",
    .made_tied = true,
};

/* minicpm3: MiniCPM 3. Latent attention (mla.c) with LongRoPE's factors; factors of minicpm's kind on the embedding, both
 * branches and the logits, which are constants of the model: files have no keys for them.
 * Source: OpenBMB, MiniCPM3-4B, 2024 (modeling_minicpm.py; scale_emb 12, scale_depth 1.4, dim_model_base 256). */
#include <math.h>

#include "model/builder.h"

static void list(fd_builder *b) {
    const float residual = 1.4f / sqrtf((float)b->h->n_layer);
    fd_mla mla = fd_read_mla(b);
    mla.how.rope_freqs = fd_build_rope_factors(b);
    mla.how.scale = 1.0f / sqrtf((float)(mla.n_nope + mla.n_rope));
    int32_t x = fd_build_scale(b, -1, "token_embd_scaled", fd_build_embed(b), 12.0f);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        int32_t branch = fd_build_mla(b, layer, fd_build_norm(b, layer, "attn_norm", "attn_norm", x), &mla);
        x = fd_build_add(b, layer, "ffn_inp", x, fd_build_scale(b, layer, "attn_proj_scaled", branch, residual));
        branch = fd_build_ffn(b, layer, fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x), FD_OP_SILU_MUL);
        x = fd_build_add(b, layer, "l_out", x, fd_build_scale(b, layer, "ffn_down_scaled", branch, residual));
    }
    fd_build_scaled_logits(b, x, 256.0f / (float)b->h->n_embd);
}

const fd_arch fd_arch_minicpm3 = {
    .name = "minicpm3",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_VALUE_LENGTH,
    .norm = FD_NORM_RMS,
    .made_keys =
        "attention.head_count_kv=heads attention.q_lora_rank=96 attention.kv_lora_rank=64 attention.key_length=48 "
        "attention.value_length=40 rope.dimension_count=16",
};

/* gemma3: as gemma2 without a softcap on scores, with norms of the heads of Q and K. Five layers of six have a sliding
 * window and a RoPE of their own, of base 10000 and unscaled. The file's norm weights hold Gemma's 1 + w already.
 * Source: Google, Gemma 3, 2025, and transformers' Gemma3TextModel. */
#include <math.h>

#include "model/builder.h"

/* 27B alone, told by its 62 layers, divides by the model's width per head in place of the head's own size. */
static float score_scale(const fd_hparams *h) {
    return 1.0f / sqrtf(h->n_layer == 62 ? (float)(h->n_embd / h->n_head) : (float)h->head_dim);
}

static void list(fd_builder *b) {
    const fd_windows windows = fd_read_windows(b, 0, 6);
    const fd_rope local = fd_rope_of_windows(b, 10000.0, false);
    double softcap = 0;
    fd_code code = fd_key_f64(b->keys, "final_logit_softcapping", 0.0, &softcap);
    if (code != FD_OK) fd_builder_set_error(b, code);
    fd_attention_block attention = {
        .qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .qk_norm = true, .scale = score_scale(b->h)};
    int32_t x = fd_build_embed(b);
    x = fd_build_scale(b, -1, "token_embd_scaled", x, sqrtf((float)b->h->n_embd));
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        attention.window = fd_window_of(&windows, layer);
        attention.rope = attention.window ? &local : NULL;
        x = fd_build_post_norm_layer(b, layer, x, &attention, FD_OP_GELU_MUL, true);
    }
    if (softcap > 0)
        fd_build_capped_logits(b, x, (float)softcap);
    else
        fd_build_logits(b, x);
}

const fd_arch fd_arch_gemma3 = {
    .name = "gemma3",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=6 attention.sliding_window=16",
    .made_tied = true,
};

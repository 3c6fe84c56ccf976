/* gemma2: the embedding times sqrt(n_embd), norms before and behind each block, a GELU-gated FFN, softcaps on scores
 * and logits, a sliding window in every other layer. The file's norm weights hold Gemma's 1 + w already. */
#include <math.h>

#include "model/builder.h"

/* Gemma 2 27B alone divides by the model's width per head in place of the head's own size; its 46 layers tell it. */
static float score_scale(const fd_hparams *h) {
    return 1.0f / sqrtf(h->n_layer == 46 ? (float)(h->n_embd / h->n_head) : (float)h->head_dim);
}

static void list(fd_builder *b) {
    const fd_hparams *h = b->h;
    const fd_windows windows = fd_read_windows(b, 4096, 2);
    const fd_rope local = fd_rope_of_windows(b, b->h->rope.base, true);
    fd_attention_block attention = {
        .qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .softcap = h->attn_softcap, .scale = score_scale(h)};
    int32_t x = fd_build_embed(b);
    x = fd_build_scale(b, -1, "token_embd_scaled", x, sqrtf((float)h->n_embd));
    for (int32_t layer = 0; layer < h->n_layer; layer++) {
        attention.window = fd_window_of(&windows, layer);
        attention.rope = attention.window ? &local : NULL;
        x = fd_build_post_norm_layer(b, layer, x, &attention, FD_OP_GELU_MUL, true);
    }
    fd_build_capped_logits(b, x, h->final_softcap);
}

const fd_arch fd_arch_gemma2 = {
    .name = "gemma2",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_SOFTCAPS,
    .made_keys = "attention.sliding_window=16 attn_logit_softcapping=50.0 final_logit_softcapping=30.0",
    .made_tied = true,
};

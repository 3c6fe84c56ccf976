/* exaone4: no norm before the blocks, one behind each; heads of Q and K normed. The 32B model, told by its 64 layers,
 * has a sliding window in three layers of four, and does not rotate in the fourth. */
#include "model/builder.h"

static void list(fd_builder *b) {
    fd_windows windows = fd_read_windows(b, 4096, 4);
    if (b->h->n_layer != 64) windows.window = 0;
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .qk_norm = true};
    attention.rope_freqs = fd_build_rope_factors(b);
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        attention.window = fd_window_of(&windows, layer);
        attention.no_rope = windows.window > 0 && attention.window == 0;
        x = fd_build_post_norm_layer(b, layer, x, &attention, FD_OP_SILU_MUL, false);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_exaone4 = {"exaone4", FD_ROPE_HALF, list, 0};

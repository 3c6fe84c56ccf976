/* glm4: GLM-4 0414. Norms before and after each block, gate and up from one matrix. RoPE on pairs of a part of each
 * head, or on halves where the file has the sections of M-RoPE; the positions of text are the same in all of these.
 * Source: transformers' Glm4Model and Glm4vTextModel. */
#include "model/builder.h"

/* A fourth section would stand still in text. */
static void read_sections(fd_builder *b) {
    const fd_gguf_kv *kv = fd_key_find(b->keys, "rope.dimension_sections");
    int64_t section, sum = 0, any = 0;
    for (uint64_t i = 0; kv && i < kv->count; i++) {
        if (!fd_gguf_item_i64(kv, i, &section) || section < 0) {
            fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT, "key glm4.rope.dimension_sections: expected sizes"));
            return;
        }
        any += section;
        if (i < 3) sum += section;
    }
    if (any == 0) return;
    b->graph->hparams.rope.pairing = FD_ROPE_HALF;
    if (sum < b->h->rope.n_rot / 2)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_UNSUPPORTED,
                                        "key glm4.rope.dimension_sections: three sections of %lld pairs, only those "
                                        "that hold all %d are implemented",
                                        (long long)sum, b->h->rope.n_rot / 2));
}

static void list(fd_builder *b) {
    read_sections(b);
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS};
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
        int32_t branch = fd_build_attention(b, layer, norm, &attention);
        branch = fd_build_norm(b, layer, "attn_post_norm", "post_attention_norm", branch);
        x = fd_build_add(b, layer, "ffn_inp", x, branch);
        norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
        branch = fd_build_ffn(b, layer, norm, FD_OP_SILU_MUL);
        branch = fd_build_norm(b, layer, "ffn_post_norm", "post_ffw_norm", branch);
        x = fd_build_add(b, layer, "l_out", x, branch);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_glm4 = {
    .name = "glm4",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .norm = FD_NORM_RMS,
    .made_keys = "rope.dimension_count=32",
    .made_with = "ffn_up.weight",
};

/* mistral3: Ministral 3 and its relatives. As llama; a temperature of the queries by position is not implemented. */
#include "model/builder.h"

static void list(fd_builder *b) {
    double temperature;
    fd_code code = fd_gguf_get_f64(b->gguf, "mistral3.attention.temperature_scale", 0.0, &temperature, b->err);
    if (code == FD_OK && temperature != 0.0)
        code = fd_fail(b->err, FD_ERR_UNSUPPORTED,
                       "key mistral3.attention.temperature_scale: %g, only 0 is implemented", temperature);
    if (code != FD_OK) fd_builder_set_error(b, code);
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL};
    attention.rope_freqs = fd_build_weight(b, "rope_freqs.weight", 1, b->h->rope.n_rot / 2, FD_OPTIONAL);
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        x = fd_build_swiglu(b, layer, x);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_mistral3 = {"mistral3", FD_ROPE_INTERLEAVED, list, 0};

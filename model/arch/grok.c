/* grok: Grok 1. Norms before and after each block; scores times a factor, then capped; experts with GELU, whose sum is
 * averaged, by 1/√2, with a plain FFN's where a layer has one; factors on the embedding and the logits. Older files
 * lack the keys of all these: the model's constants stand in. (Grok 2 scales attention by its length, which is refused.)
 * Source: xAI, Grok-1, 2024 (model.py of xai-org/grok-1). */
#include <math.h>

#include "model/builder.h"

typedef struct factors {
    double embedding, logits, scores, score_cap, logit_cap;
} factors;

static factors read_factors(fd_builder *b) {
    factors f = {0};
    const struct {
        const char *key;
        double fallback, *to;
    } keys[] = {{"embedding_scale", 78.38367176906169, &f.embedding},
                {"logit_scale", 0.5773502691896257, &f.logits},
                {"attention.output_scale", 0.08838834764831845, &f.scores},
                {"attn_logit_softcapping", 30.0, &f.score_cap},
                {"final_logit_softcapping", 0.0, &f.logit_cap}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        fd_code code = fd_key_f64(b->keys, keys[i].key, keys[i].fallback, keys[i].to);
        if (code != FD_OK) fd_builder_set_error(b, code);
    }
    if (b->code == FD_OK && !(f.score_cap > 0))
        fd_builder_set_error(
            b, fd_fail(b->err, FD_ERR_INPUT, "key grok.attn_logit_softcapping: %g, expected more than 0", f.score_cap));
    return f;
}

/* Experts, and the plain FFN of layers that have one. */
static int32_t mixture(fd_builder *b, int32_t layer, int32_t x) {
    const fd_experts_block experts = {
        .gating = FD_GATING_NORMALISED, .activation = FD_OP_GELU_MUL, .bias = FD_OPTIONAL};
    int32_t moe = fd_build_experts(b, layer, x, &experts);
    if (!fd_build_has(b, layer, "ffn_up.weight")) return moe;
    int32_t both = fd_build_add(b, layer, "ffn_both", fd_build_ffn(b, layer, x, FD_OP_GELU_MUL), moe);
    return fd_build_scale(b, layer, "ffn_out", both, (float)sqrt(0.5));
}

static void list(fd_builder *b) {
    const factors f = read_factors(b);
    const fd_attention_block attention = {.qkv_bias = FD_OPTIONAL,
                                          .rope_freqs = FD_NO_ROPE_FACTORS,
                                          .scale = (float)f.scores,
                                          .softcap = (float)f.score_cap};
    int32_t x = fd_build_scale(b, -1, "token_embd_scaled", fd_build_embed(b), (float)f.embedding);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        const char *last = fd_build_has(b, layer, "layer_output_norm.weight") ? "layer_output_norm" : "post_ffw_norm";
        int32_t branch = fd_build_attention(b, layer, fd_build_norm(b, layer, "attn_norm", "attn_norm", x), &attention);
        x = fd_build_add(b, layer, "ffn_inp", x, fd_build_norm(b, layer, "attn_post_norm", "attn_output_norm", branch));
        branch = mixture(b, layer, fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x));
        x = fd_build_add(b, layer, "l_out", x, fd_build_norm(b, layer, "ffn_post_norm", last, branch));
    }
    if (f.logit_cap > 0)
        fd_build_scaled_capped_logits(b, x, (float)f.logits, (float)f.logit_cap);
    else
        fd_build_scaled_logits(b, x, (float)f.logits);
}

const fd_arch fd_arch_grok = {
    .name = "grok",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_YARN_EXT,
    .norm = FD_NORM_RMS,
    .made_keys = "expert_count=4 expert_used_count=2 expert_feed_forward_length=256",
    .made_with = "ffn_gate.weight ffn_up.weight ffn_down.weight",
};

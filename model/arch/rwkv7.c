/* rwkv7: no attention and no positions. Each layer mixes a row with the one before it, by a weight an element and once
 * for each of r, w, k, v, a and g (token shift); a state S [value, key] of each head decays by w, loses along b what a
 * reads of it, takes in v·kᵀ, and r reads it. The head's output is normed, gets v back by what r sees of k, and is
 * gated. Then a feed-forward part with a token shift of its own.
 *
 * As in mamba.c the state is not stored: the node reads a cache whose rows have, by head, w, k, v, a and b. The values
 * of the first layer are mixed into those of all others. Source: Peng et al., RWKV-7 "Goose", 2025; RWKV-LM's
 * RWKV_x070. */
#include <stdio.h>

#include "model/builder.h"

/* Constants of the reference code: decays are above e^-0.606531, the norm of a head's output has 64·10^-5. */
#define LOG_DECAY (-0.606531f)
#define NORM_EPS  64e-5f

typedef struct mix {
    int32_t n_head, layer;
    int32_t cache;   /* of the rows that are shifted */
    int32_t v_first; /* of layer 0 */
} mix;

static int32_t shifted(fd_builder *b, const mix *m, const char *name, int32_t row) {
    return fd_build_token_shift(b, m->layer, name, "time_mix_lerp_fused", m->cache, (fd_part){row, 6});
}

static int32_t rank_of(fd_builder *b, const char *what) {
    char name[64];
    int32_t rank = 1;
    snprintf(name, sizeof name, "attention.%s_lora_rank", what);
    fd_code code = fd_key_i32(b->keys, name, -1, 1, 1 << 20, &rank);
    if (code != FD_OK) fd_builder_set_error(b, code);
    return rank;
}

static int32_t product(fd_builder *b, int32_t layer, const char *name, int32_t x, int32_t n) {
    return fd_build_matmul(b, layer, name, name, x, n, FD_OPTIONAL);
}

/* w2·tanh(w1·x) + w0, then e^(-0.606531·σ(…)). */
static int32_t decay(fd_builder *b, const mix *m) {
    int32_t x = product(b, m->layer, "time_mix_w1", shifted(b, m, "time_mix_xw", 1), rank_of(b, "decay"));
    x = fd_build_softcap(b, m->layer, "time_mix_w_tanh", x, 1.0f);
    x = product(b, m->layer, "time_mix_w2", x, b->h->n_embd);
    x = fd_build_add_vector(b, m->layer, "time_mix_w_biased", "time_mix_w0.weight", x);
    x = fd_build_activation(b, m->layer, "time_mix_w_sigmoid", FD_OP_SIGMOID, x);
    x = fd_build_scale(b, m->layer, "time_mix_w_log", x, LOG_DECAY);
    return fd_build_activation(b, m->layer, "time_mix_w", FD_OP_EXP, x);
}

/* σ(a2·(a1·x) + a0). */
static int32_t rate(fd_builder *b, const mix *m) {
    int32_t x = product(b, m->layer, "time_mix_a1", shifted(b, m, "time_mix_xa", 4), rank_of(b, "iclr"));
    x = product(b, m->layer, "time_mix_a2", x, b->h->n_embd);
    x = fd_build_add_vector(b, m->layer, "time_mix_a_biased", "time_mix_a0.weight", x);
    return fd_build_activation(b, m->layer, "time_mix_a", FD_OP_SIGMOID, x);
}

/* a + (b - a)·share. */
static int32_t blend(fd_builder *b, const mix *m, int32_t x, int32_t other, int32_t share) {
    int32_t minus = fd_build_scale(b, m->layer, "time_mix_v_minus", x, -1.0f);
    int32_t more = fd_build_add(b, m->layer, "time_mix_v_difference", other, minus);
    more = fd_build_mul(b, m->layer, "time_mix_v_residual", more, share);
    return fd_build_add(b, m->layer, "time_mix_v", x, more);
}

static int32_t values(fd_builder *b, mix *m) {
    const int32_t n = b->h->n_embd, rank = rank_of(b, "value_residual_mix");
    int32_t xv = shifted(b, m, "time_mix_xv", 3);
    int32_t v = product(b, m->layer, "time_mix_value", xv, n);
    if (m->layer == 0) { /* files have them here too, of the other rank, and nothing reads them */
        fd_build_weight(b, "blk.0.time_mix_v0.weight", 1, n, FD_OPTIONAL);
        fd_build_weight(b, "blk.0.time_mix_v1.weight", rank_of(b, "iclr"), n, FD_OPTIONAL);
        fd_build_weight(b, "blk.0.time_mix_v2.weight", n, rank_of(b, "iclr"), FD_OPTIONAL);
        return m->v_first = v;
    }
    int32_t share = product(b, m->layer, "time_mix_v1", xv, rank);
    share = product(b, m->layer, "time_mix_v2", share, n);
    share = fd_build_add_vector(b, m->layer, "time_mix_v_biased", "time_mix_v0.weight", share);
    share = fd_build_activation(b, m->layer, "time_mix_v_share", FD_OP_SIGMOID, share);
    return blend(b, m, v, m->v_first, share);
}

static int32_t gate(fd_builder *b, const mix *m) {
    int32_t x = product(b, m->layer, "time_mix_g1", shifted(b, m, "time_mix_xg", 5), rank_of(b, "gate"));
    x = fd_build_activation(b, m->layer, "time_mix_g_sigmoid", FD_OP_SIGMOID, x);
    return product(b, m->layer, "time_mix_g2", x, b->h->n_embd);
}

/* k·(1 + (a - 1)·k_a). */
static int32_t keys(fd_builder *b, const mix *m, int32_t k, int32_t a) {
    int32_t ka = fd_build_mul_vector(b, m->layer, "time_mix_ka", "time_mix_k_a.weight", k);
    int32_t more = fd_build_mul(b, m->layer, "time_mix_ka_a", a, ka);
    more = fd_build_add(b, m->layer, "time_mix_k_change", more,
                        fd_build_scale(b, m->layer, "time_mix_ka_minus", ka, -1.0f));
    return fd_build_heads(b, fd_build_add(b, m->layer, "time_mix_k", k, more), m->n_head);
}

static int32_t time_mix(fd_builder *b, mix *m) {
    const int32_t n = b->h->n_embd, layer = m->layer;
    int32_t r = product(b, layer, "time_mix_receptance", shifted(b, m, "time_mix_xr", 0), n);
    int32_t w = decay(b, m);
    int32_t k_in = product(b, layer, "time_mix_key", shifted(b, m, "time_mix_xk", 2), n);
    int32_t v = values(b, m), a = rate(b, m);
    int32_t kk = fd_build_mul_vector(b, layer, "time_mix_kk_in", "time_mix_k_k.weight", k_in);
    kk = fd_build_l2_norm(b, layer, "time_mix_kk", fd_build_heads(b, kk, m->n_head), 1e-24f);
    int32_t k = keys(b, m, k_in, a);
    fd_build_heads(b, r, m->n_head);
    fd_build_heads(b, v, m->n_head);
    int32_t row = fd_build_concat(b, layer, "wkv_w_k", fd_build_heads(b, w, m->n_head), k);
    row = fd_build_concat(b, layer, "wkv_w_k_v", row, v);
    row = fd_build_concat(b, layer, "wkv_w_k_v_a", row, fd_build_scale(b, layer, "time_mix_kk_minus", kk, -1.0f));
    row = fd_build_concat(b, layer, "wkv_row", row, fd_build_mul(b, layer, "time_mix_kk_a", kk, a));
    int32_t y = fd_build_wkv7(b, layer, "wkv_out", fd_build_kv_write(b, layer, "cache_wkv", row), r);
    y = fd_build_layer_norm_groups(b, layer, "wkv_norm", "time_mix_ln", y, NORM_EPS);
    int32_t seen = fd_build_mul(b, layer, "time_mix_k_r", k, r);
    seen = fd_build_head_dot(b, layer, "time_mix_r_k", "time_mix_r_k", seen);
    y = fd_build_add(b, layer, "wkv_bonus", y, fd_build_mul(b, layer, "time_mix_v_seen", v, seen));
    y = fd_build_mul(b, layer, "wkv_gated", y, gate(b, m));
    return product(b, layer, "time_mix_output", y, n);
}

static int32_t channel_mix(fd_builder *b, int32_t layer, int32_t cache) {
    int32_t x = fd_build_token_shift(b, layer, "channel_mix_xk", "channel_mix_lerp_k", cache, (fd_part){0, 1});
    x = product(b, layer, "channel_mix_key", x, b->h->n_ff);
    x = fd_build_activation(b, layer, "channel_mix_act", FD_OP_RELU_SQUARED, x);
    return product(b, layer, "channel_mix_value", x, b->h->n_embd);
}

static int32_t norm_to_cache(fd_builder *b, int32_t layer, const char *name, const char *weight, const char *cache,
                             int32_t x) {
    return fd_build_kv_write(b, layer, cache, fd_build_norm(b, layer, name, weight, x));
}

static void list(fd_builder *b) {
    int32_t head_size = 1, shift;
    fd_code code = fd_key_i32(b->keys, "wkv.head_size", -1, 1, FD_MAX_STATE, &head_size);
    if (code == FD_OK) code = fd_key_i32(b->keys, "token_shift_count", 2, 2, 2, &shift);
    if (code == FD_OK && (b->h->n_embd % head_size != 0 || b->h->n_ff < 1))
        code = fd_fail(b->err, FD_ERR_INPUT,
                       "key rwkv7.wkv.head_size: %d, expected a divisor of embedding_length %d, and a "
                       "feed_forward_length",
                       head_size, b->h->n_embd);
    if (code != FD_OK) fd_builder_set_error(b, code);
    mix m = {.n_head = b->h->n_embd / head_size};
    int32_t x = fd_build_norm(b, -1, "token_embd_norm", "token_embd_norm", fd_build_embed(b));
    for (m.layer = 0; m.layer < b->h->n_layer; m.layer++) {
        m.cache = norm_to_cache(b, m.layer, "attn_norm", "attn_norm", "cache_shift", x);
        x = fd_build_add(b, m.layer, "ffn_inp", x, time_mix(b, &m));
        int32_t cache = norm_to_cache(b, m.layer, "ffn_norm", "attn_norm_2", "cache_ffn_shift", x);
        x = fd_build_add(b, m.layer, "l_out", x, channel_mix(b, m.layer, cache));
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_rwkv7 = {
    .name = "rwkv7",
    .list = list,
    .reads = FD_READS_NO_ATTENTION,
    .norm = FD_NORM_LAYER,
    .made_keys = "attention.head_count=0 wkv.head_size=64 attention.decay_lora_rank=32 attention.iclr_lora_rank=32 "
                 "attention.value_residual_mix_lora_rank=32 attention.gate_lora_rank=64",
    .made_with = FD_NORM_BIASES " token_embd_norm.bias attn_norm_2.bias time_mix_v0.weight time_mix_v1.weight "
                                "time_mix_v2.weight",
    .made_untied = true,
};

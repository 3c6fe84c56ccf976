/* lfm2 and lfm2moe: layers without K/V heads mix three positions: of one projection's parts b, c and x, b*x is convolved
 * and times c projected back. The others attend, with heads of Q and K normed and RoPE on halves. lfm2moe has after the
 * first layers experts chosen by a sigmoid and a bias that only the choice sees. The last norm is token_embd_norm in the
 * file.
 * Source: Liquid AI, LFM2, 2025, and transformers' Lfm2Model and Lfm2MoeModel. */
#include "model/builder.h"

static int32_t mix(fd_builder *b, int32_t layer, int32_t x, int32_t n_tap) {
    static const char *const names[] = {"conv_b", "conv_c", "conv_x"};
    const int32_t n = b->h->n_embd;
    int32_t part[3];
    for (int i = 0; i < 3; i++)
        part[i] = fd_build_matmul_part(b, layer, names[i], "shortconv.in_proj", x,
                                       (fd_part){(int64_t)i * n, 3 * (int64_t)n}, n, FD_OPTIONAL);
    int32_t bx = fd_build_mul(b, layer, "conv_bx", part[0], part[2]);
    int32_t cache = fd_build_kv_write(b, layer, "cache_conv", bx);
    int32_t mixed = fd_build_conv(b, layer, "conv_out", "shortconv.conv", cache, n_tap, FD_OPTIONAL);
    mixed = fd_build_mul(b, layer, "conv_gated", part[1], mixed);
    return fd_build_matmul(b, layer, "conv_proj", "shortconv.out_proj", mixed, n, FD_OPTIONAL);
}

static void list_with(fd_builder *b, int32_t window) {
    int32_t n_tap = 1;
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .qk_norm = true};
    attention.window = window;
    fd_code code = fd_key_i32(b->keys, "shortconv.l_cache", -1, 1, 64, &n_tap);
    if (code != FD_OK) fd_builder_set_error(b, code);
    fd_experts_block experts = fd_experts_of_file(b);
    experts.gating = FD_GATING_NORMALISED;
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
        int32_t branch = fd_layer_has(b, layer, "attention.head_count_kv")
                             ? fd_build_attention(b, layer, norm, &attention)
                             : mix(b, layer, norm, n_tap);
        x = fd_build_add(b, layer, "ffn_inp", x, branch);
        norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
        x = fd_build_add(b, layer, "l_out", x, fd_build_mixture(b, layer, norm, &experts));
    }
    fd_build_logits_normed(b, x, "token_embd_norm");
}

/* LFM2 alone may have a window, in every layer that attends. */
static void list(fd_builder *b) {
    int32_t window = 0;
    fd_code code = fd_key_i32(b->keys, "attention.sliding_window", 0, 0, INT32_MAX, &window);
    if (code != FD_OK) fd_builder_set_error(b, code);
    list_with(b, window);
}

static void list_experts(fd_builder *b) {
    list_with(b, 0);
}

const fd_arch fd_arch_lfm2 = {
    .name = "lfm2",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_HYBRID,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=3 attention.head_count_kv=0,kv,0,.. shortconv.l_cache=3",
    .made_tied = true,
};
const fd_arch fd_arch_lfm2moe = {
    .name = "lfm2moe",
    .rope_pairing = FD_ROPE_HALF,
    .list = list_experts,
    .reads = FD_READS_HYBRID | FD_READS_EXPERTS | FD_READS_DENSE_LAYERS,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=3 attention.head_count_kv=0,kv,0,.. shortconv.l_cache=3 leading_dense_block_count=1 "
                 "expert_count=4 expert_used_count=2 expert_feed_forward_length=256 expert_gating_func=2",
    .made_with = "exp_probs_b.bias",
    .made_tied = true,
};

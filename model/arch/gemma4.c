/* gemma4: Gemma 4. As gemma3, with layers of two kinds: those with a sliding window have heads, K/V heads and a RoPE of
 * their own; the others rotate the pairs that rope_freqs leaves. Scores have no scale, heads of V are normed without
 * weights, and a layer without attn_v takes K's projection for V. The last layers have no K and V: they read the cache of
 * the last layer of their kind that has. Every layer's output is times a number of the file.
 *
 * Small models (E2B, E4B) have a second embedding, a row for each layer, which gates what a layer adds at its end. A
 * mixture of experts (26B-A4B) stands beside the FFN: both read the stream, each through norms of its own.
 * Source: Google, Gemma 4, 2026, transformers' Gemma4TextModel. */
#include <math.h>

#include "model/builder.h"

typedef struct cache {
    int32_t k, v; /* nodes */
} cache;

typedef struct gemma4 {
    const fd_gguf_kv *windowed; /* a layer an item */
    int32_t window, dim_windowed, n_layer_kv, n_extra;
    fd_rope rope_windowed;
    fd_rope_factors factors; /* of layers without a window */
    float softcap;
    int32_t extra; /* node: the second embedding of all layers, n_extra elements each */
    cache last[2]; /* of layers without and with a window */
} gemma4;

static int32_t key(fd_builder *b, const char *name, int64_t fallback, int64_t low, int64_t high) {
    int32_t value = (int32_t)low;
    fd_code code = fd_key_i32(b->keys, name, fallback, low, high, &value);
    if (code != FD_OK) fd_builder_set_error(b, code);
    return value;
}

static gemma4 read_keys(fd_builder *b) {
    const int32_t n_layer = b->h->n_layer;
    gemma4 g = {.windowed = fd_key_find(b->keys, "attention.sliding_window_pattern"),
                .window = key(b, "attention.sliding_window", -1, 1, INT32_MAX),
                .dim_windowed = key(b, "attention.key_length_swa", -1, 2, 4096),
                .n_layer_kv = n_layer - key(b, "attention.shared_kv_layers", 0, 0, n_layer - 1),
                .n_extra = key(b, "embedding_length_per_layer_input", 0, 0, 1 << 20),
                .rope_windowed = fd_rope_of_windows(b, 10000.0, false),
                .factors = fd_build_rope_factors(b),
                .last = {{-1, -1}, {-1, -1}}};
    double softcap = 0;
    if (b->code == FD_OK && g.n_layer_kv < 2)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT,
                                        "key gemma4.attention.shared_kv_layers: leaves %d layers of %d, expected 2",
                                        g.n_layer_kv, n_layer));
    if (key(b, "attention.value_length_swa", g.dim_windowed, 2, 4096) != g.dim_windowed)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_UNSUPPORTED,
                                        "key gemma4.attention.value_length_swa: expected key_length_swa's %d",
                                        g.dim_windowed));
    if (!g.windowed || g.windowed->type != FD_GGUF_ARRAY || g.windowed->count < (uint64_t)n_layer)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT,
                                        "key gemma4.attention.sliding_window_pattern: expected %d layers", n_layer));
    g.rope_windowed.n_rot = key(b, "rope.dimension_count_swa", g.dim_windowed, 2, g.dim_windowed);
    fd_code code = fd_key_f64(b->keys, "final_logit_softcapping", 30.0, &softcap);
    if (code != FD_OK) fd_builder_set_error(b, code);
    g.softcap = (float)softcap;
    return g;
}

static bool is_windowed(const gemma4 *g, int32_t layer) {
    int64_t item = 0;
    return g->windowed && fd_gguf_item_i64(g->windowed, (uint64_t)layer, &item) && item != 0;
}

static int32_t rotated(fd_builder *b, int32_t layer, const char *name, int32_t x, const gemma4 *g) {
    const bool windowed = is_windowed(g, layer);
    x = fd_build_rope(b, layer, name, x, windowed ? FD_NO_ROPE_FACTORS : g->factors);
    if (windowed && b->code == FD_OK) b->graph->nodes[x].rope = g->rope_windowed;
    return x;
}

static cache keys_and_values(fd_builder *b, int32_t layer, int32_t x, const gemma4 *g, int32_t dim) {
    const int32_t n_head = fd_layer_number(b, layer, "attention.head_count_kv", b->h->n_head);
    int32_t k = fd_build_matmul(b, layer, "attn_k", "attn_k", x, n_head * dim, FD_OPTIONAL), v = k;
    if (fd_build_has(b, layer, "attn_v.weight"))
        v = fd_build_matmul(b, layer, "attn_v", "attn_v", x, n_head * dim, FD_OPTIONAL);
    fd_build_heads(b, k, n_head);
    fd_build_heads(b, v, n_head);
    k = rotated(b, layer, "attn_k_rope", fd_build_norm(b, layer, "attn_k_norm", "attn_k_norm", k), g);
    v = fd_build_unit_norm(b, layer, "attn_v_unit", "attn_v_norm", v);
    return (cache){fd_build_kv_write(b, layer, "cache_k", k), fd_build_kv_write(b, layer, "cache_v", v)};
}

static int32_t attention(fd_builder *b, int32_t layer, int32_t x, gemma4 *g) {
    const bool windowed = is_windowed(g, layer);
    const int32_t dim = windowed ? g->dim_windowed : b->h->head_dim, n_head = b->h->n_head;
    const fd_attention_block how = {.scale = 1.0f, .window = windowed ? g->window : 0};
    int32_t q = fd_build_matmul(b, layer, "attn_q", "attn_q", x, n_head * dim, FD_OPTIONAL);
    fd_build_heads(b, q, n_head);
    q = rotated(b, layer, "attn_q_rope", fd_build_norm(b, layer, "attn_q_norm", "attn_q_norm", q), g);
    cache *last = &g->last[windowed];
    if (layer < g->n_layer_kv) *last = keys_and_values(b, layer, x, g, dim);
    if (last->k < 0) {
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_INPUT,
                                        "key gemma4.attention.shared_kv_layers: layer %d has no earlier layer of its "
                                        "kind with K and V",
                                        layer));
        return 0;
    }
    int32_t scores = fd_build_attn_scores(b, layer, q, last->k, &how);
    int32_t out = fd_build_attn_mix(b, layer, fd_build_attn_softmax(b, layer, scores, false), last->v);
    return fd_build_matmul(b, layer, "attn_proj", "attn_output", out, b->h->n_embd, FD_OPTIONAL);
}

/* FFN and experts side by side; the router reads the stream, normed without weights. */
static int32_t mixture(fd_builder *b, int32_t layer, int32_t x, int32_t n_ff) {
    const fd_experts_block how = {.gating = FD_GATING_NORMALISED, .activation = FD_OP_GELU_MUL, .bias = FD_OPTIONAL};
    int32_t ffn = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
    ffn = fd_build_ffn_of(b, layer, ffn, FD_OP_GELU_MUL, n_ff);
    ffn = fd_build_norm(b, layer, "ffn_post_norm_1", "post_ffw_norm_1", ffn);
    int32_t router = fd_build_unit_norm(b, layer, "ffn_moe_x_unit", "ffn_moe_x_norm", x);
    router = fd_build_scale(b, layer, "ffn_moe_x_scaled", router, 1.0f / sqrtf((float)b->h->n_embd));
    router = fd_build_mul_vector(b, layer, "ffn_moe_x", "ffn_gate_inp.scale", router);
    int32_t moe = fd_build_norm(b, layer, "ffn_pre_norm_2", "pre_ffw_norm_2", x);
    moe = fd_build_routed_experts(b, layer, router, moe, &how);
    moe = fd_build_norm(b, layer, "ffn_post_norm_2", "post_ffw_norm_2", moe);
    return fd_build_add(b, layer, "ffn_both", ffn, moe);
}

static int32_t feed_forward(fd_builder *b, int32_t layer, int32_t x) {
    const int32_t n_ff = fd_layer_number(b, layer, "feed_forward_length", b->h->n_ff);
    if (b->h->n_expert > 0) return mixture(b, layer, x, n_ff);
    return fd_build_ffn_of(b, layer, fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x), FD_OP_GELU_MUL, n_ff);
}

/* The second embedding of all layers, and what the first one gives of it: their mean, times √2. */
static int32_t second_embedding(fd_builder *b, int32_t x, const gemma4 *g) {
    const int32_t n = g->n_extra * b->h->n_layer;
    int32_t row = fd_build_embed_of(b, "per_layer_token_embd", n);
    row = fd_build_scale(b, -1, "per_layer_token_embd_scaled", row, sqrtf((float)g->n_extra));
    int32_t other = fd_build_matmul(b, -1, "per_layer_proj", "per_layer_model_proj", x, n, FD_OPTIONAL);
    fd_build_heads(b, other, b->h->n_layer);
    other = fd_build_scale(b, -1, "per_layer_proj_scaled", other, 1.0f / sqrtf((float)b->h->n_embd));
    other = fd_build_norm(b, -1, "per_layer_proj_norm", "per_layer_proj_norm", other);
    int32_t sum = fd_build_one_head(b, fd_build_add(b, -1, "per_layer_sum", other, row));
    return fd_build_scale(b, -1, "per_layer_input", sum, (float)sqrt(0.5));
}

static int32_t add_second_embedding(fd_builder *b, int32_t layer, int32_t x, const gemma4 *g) {
    int32_t own = fd_build_slice(b, layer, "per_layer_input", g->extra, layer * g->n_extra, g->n_extra);
    int32_t gate = fd_build_matmul(b, layer, "per_layer_gate", "inp_gate", x, g->n_extra, FD_OPTIONAL);
    int32_t act = fd_build_gated(b, layer, "per_layer_act", FD_OP_GELU_MUL, gate, own);
    int32_t out = fd_build_matmul(b, layer, "per_layer_out", "proj", act, b->h->n_embd, FD_OPTIONAL);
    return fd_build_add(b, layer, "per_layer_added", x, fd_build_norm(b, layer, "per_layer_norm", "post_norm", out));
}

static int32_t layer_of(fd_builder *b, int32_t layer, int32_t x, gemma4 *g) {
    int32_t branch = attention(b, layer, fd_build_norm(b, layer, "attn_norm", "attn_norm", x), g);
    branch = fd_build_norm(b, layer, "attn_post_norm", "post_attention_norm", branch);
    x = fd_build_add(b, layer, "ffn_inp", x, branch);
    branch = fd_build_norm(b, layer, "ffn_post_norm", "post_ffw_norm", feed_forward(b, layer, x));
    const bool scaled = fd_build_has(b, layer, "layer_output_scale.weight");
    x = fd_build_add(b, layer, scaled || g->n_extra ? "ffn_added" : "l_out", x, branch);
    if (g->n_extra) x = add_second_embedding(b, layer, x, g);
    return scaled ? fd_build_scale_of_file(b, layer, "l_out", "layer_output_scale", x) : x;
}

static void list(fd_builder *b) {
    gemma4 g = read_keys(b);
    int32_t x = fd_build_scale(b, -1, "token_embd_scaled", fd_build_embed(b), sqrtf((float)b->h->n_embd));
    if (g.n_extra) g.extra = second_embedding(b, x, &g);
    for (int32_t layer = 0; layer < b->h->n_layer && b->code == FD_OK; layer++) x = layer_of(b, layer, x, &g);
    if (g.softcap > 0)
        fd_build_capped_logits(b, x, g.softcap);
    else
        fd_build_logits(b, x);
}

const fd_arch fd_arch_gemma4 = {
    .name = "gemma4",
    .rope_pairing = FD_ROPE_HALF,
    .list = list,
    .reads = FD_READS_EXPERTS | FD_READS_LAYER_SIZES,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=4 attention.sliding_window=16 attention.sliding_window_pattern=1,0,.. "
                 "attention.key_length=32 attention.value_length=32 attention.key_length_swa=16 "
                 "attention.value_length_swa=16 rope.dimension_count=32 rope.dimension_count_swa=16 "
                 "rope.freq_base=1000000.0 rope.freq_base_swa=10000.0 attention.head_count_kv=kv,1,.. "
                 "final_logit_softcapping=30.0 embedding_length_per_layer_input=32 attention.shared_kv_layers=layers-2",
    .made_with = "rope_freqs.weight layer_output_scale.weight",
    .made_tied = true,
};

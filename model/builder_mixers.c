/* The nodes that mix: RoPE and attention, products of heads, convolutions and states over positions, experts. */
#include <math.h>

#include "model/builder_nodes.h"

fd_rope_factors fd_build_rope_factors(fd_builder *b) {
    int64_t n = b->h->rope.n_rot / 2;
    fd_rope_factors one = {fd_build_weight(b, "rope_freqs.weight", 1, n, FD_OPTIONAL), -1};
    bool longrope = fd_build_has(b, -1, "rope_factors_long.weight") || b->h->rope.scaling == FD_ROPE_SCALING_LONGROPE;
    if (one.in_use >= 0 || !longrope) return one;
    return (fd_rope_factors){fd_build_weight(b, "rope_factors_short.weight", 1, n, FD_REQUIRED),
                             fd_build_weight(b, "rope_factors_long.weight", 1, n, FD_REQUIRED)};
}

int32_t fd_build_rope(fd_builder *b, int32_t layer, const char *name, int32_t x, fd_rope_factors factors) {
    fd_node node = like_input(b, FD_OP_ROPE, layer, name, x, -1);
    node.weight[0] = factors.in_use;
    node.weight[1] = factors.other;
    node.rope = b->h->rope;
    if (b->code == FD_OK && node.rope.n_rot % 2 != 0)
        fd_builder_set_error(b,
                             fd_fail(b->err, FD_ERR_INPUT, "key %s.rope.dimension_count: %d, expected an even number",
                                     b->h->arch, node.rope.n_rot));
    return add_node(b, node);
}

int32_t fd_build_kv_write(fd_builder *b, int32_t layer, const char *name, int32_t x) {
    fd_node node = like_input(b, FD_OP_KV_WRITE, layer, name, x, -1);
    if (node.n_dim == 1) {
        node.n_dim = 2;
        node.shape[1] = node.shape[0];
        node.shape[0] = 1;
    }
    return add_node(b, node);
}

int32_t fd_build_attn_scores(fd_builder *b, int32_t layer, int32_t q, int32_t cache_k, const fd_attention_block *how) {
    fd_node node = node_of(FD_OP_ATTN_SCORES, layer, "attn_scores", q, cache_k);
    node.n_dim = 2;
    node.shape[0] = b->h->n_head;
    node.over_kv = true;
    node.scale = how->scale > 0.0f ? how->scale : 1.0f / sqrtf((float)b->h->head_dim);
    node.softcap = how->softcap;
    node.window = how->window;
    node.chunked = how->chunked;
    return add_node(b, node);
}

int32_t fd_build_attn_alibi(fd_builder *b, int32_t layer, int32_t scores) {
    fd_node node = like_input(b, FD_OP_ATTN_ALIBI, layer, "attn_alibi", scores, -1);
    node.over_kv = true;
    node.max_bias = b->h->max_alibi_bias;
    return add_node(b, node);
}

int32_t fd_build_attn_temperature(fd_builder *b, int32_t layer, int32_t q, int32_t first) {
    fd_node node = like_input(b, FD_OP_ATTN_TEMPERATURE, layer, "attn_q_temperature", q, -1);
    node.scale = b->h->temperature_scale;
    node.length = b->h->temperature_length;
    node.first = first;
    return add_node(b, node);
}

int32_t fd_build_attn_softmax(fd_builder *b, int32_t layer, int32_t scores, bool sinks) {
    fd_node node = like_input(b, FD_OP_ATTN_SOFTMAX, layer, "attn_weights", scores, -1);
    if (sinks)
        node.weight[0] = fd_build_weight(b, name_of(layer, "attn_sinks", ".weight").text, 1, b->h->n_head, FD_REQUIRED);
    node.over_kv = true;
    return add_node(b, node);
}

int32_t fd_build_attn_mix(fd_builder *b, int32_t layer, int32_t weights, int32_t cache_v) {
    fd_node node = node_of(FD_OP_ATTN_MIX, layer, "attn_out", weights, cache_v);
    node.n_dim = 2;
    node.shape[0] = b->h->n_head;
    if (b->code == FD_OK) node.shape[1] = node_at(b, cache_v)->shape[1];
    return add_node(b, node);
}

int32_t fd_build_head_matmul(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x,
                             int32_t n_out) {
    fd_node node = like_input(b, FD_OP_HEAD_MATMUL, layer, name, x, -1);
    node.weight[0] =
        fd_build_matrices(b, name_of(layer, weight, ".weight").text, node.shape[0], n_out, node.shape[1], FD_REQUIRED);
    node.shape[1] = n_out;
    return add_node(b, node);
}

int32_t fd_build_head_dot(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x) {
    fd_node node = like_input(b, FD_OP_HEAD_MATMUL, layer, name, x, -1);
    node.weight[0] = fd_build_flat_rows(b, name_of(layer, weight, ".weight").text, node.shape[0], node.shape[1]);
    node.shape[1] = 1;
    return add_node(b, node);
}

int32_t fd_build_conv(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t cache, int32_t n_tap,
                      fd_need bias) {
    fd_node node = like_input(b, FD_OP_CONV, layer, name, cache, -1);
    node.weight[0] =
        fd_build_weight(b, name_of(layer, weight, ".weight").text, fd_node_width(&node), n_tap, FD_REQUIRED);
    node.weight[1] = fd_build_weight(b, name_of(layer, weight, ".bias").text, 1, fd_node_width(&node), bias);
    return add_node(b, node);
}

int32_t fd_build_token_shift(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t cache,
                             fd_part part) {
    fd_node node = like_input(b, FD_OP_TOKEN_SHIFT, layer, name, cache, -1);
    const weight_name full = name_of(layer, weight, ".weight");
    node.shape[0] = (int32_t)fd_node_width(&node);
    node.n_dim = 1;
    node.weight[0] = part.n_total > 1 ? fd_build_fused_row(b, full.text, part, node.shape[0])
                                      : fd_build_weight(b, full.text, 1, node.shape[0], FD_REQUIRED);
    return add_node(b, node);
}

int32_t fd_build_gated_delta(fd_builder *b, int32_t layer, const char *name, int32_t cache, int32_t q,
                             const int32_t shape[2]) {
    if (b->code != FD_OK) return 0;
    fd_node node = node_of(FD_OP_GATED_DELTA, layer, name, cache, q);
    node.n_dim = 2;
    node.shape[0] = shape[0];
    node.shape[1] = shape[1];
    node.scale = 1.0f / sqrtf((float)node_at(b, q)->shape[1]);
    return add_node(b, node);
}

int32_t fd_build_wkv7(fd_builder *b, int32_t layer, const char *name, int32_t cache, int32_t r) {
    if (b->code != FD_OK) return 0;
    fd_node node = like_input(b, FD_OP_WKV7, layer, name, r, -1);
    node.input[0] = cache;
    node.input[1] = r;
    return add_node(b, node);
}

int32_t fd_build_ssm_scan(fd_builder *b, int32_t layer, int32_t cache, int32_t read, const int32_t shape[2],
                          bool each_state) {
    if (b->code != FD_OK) return 0;
    fd_node node = node_of(FD_OP_SSM_SCAN, layer, "ssm_scan", cache, read);
    node.n_dim = 2;
    node.shape[0] = shape[0];
    node.shape[1] = shape[1];
    node.weight[0] = fd_build_weight(b, name_of(layer, "ssm_a", "").text, shape[0],
                                     each_state ? node_at(b, read)->shape[1] : 1, FD_REQUIRED);
    node.weight[1] = fd_build_weight(b, name_of(layer, "ssm_d", "").text, each_state ? 1 : shape[0],
                                     each_state ? shape[0] : 1, FD_REQUIRED);
    return add_node(b, node);
}

int32_t fd_build_top_k(fd_builder *b, int32_t layer, int32_t x) {
    fd_node node = node_of(FD_OP_TOP_K, layer, "ffn_moe_topk", x, -1);
    node.shape[0] = b->h->n_expert_used;
    if (b->h->n_expert_group > 1) {
        node.n_group = b->h->n_expert_group;
        node.n_group_used = b->h->n_expert_group_used;
    }
    return add_node(b, node);
}

int32_t fd_build_expert_weights(fd_builder *b, int32_t layer, const char *name, int32_t row, int32_t ids,
                                fd_gating gating) {
    fd_node node = node_of(FD_OP_EXPERT_WEIGHTS, layer, name, row, ids);
    node.shape[0] = b->h->n_expert_used;
    node.gating = gating;
    node.scale = b->h->expert_scale;
    return add_node(b, node);
}

int32_t fd_build_expert_matmul(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x,
                               int32_t ids, int32_t n_out, fd_need bias) {
    if (b->code != FD_OK) return 0;
    fd_node node = node_of(FD_OP_EXPERT_MATMUL, layer, name, x, ids);
    const fd_node *input = node_at(b, x);
    node.weight[0] = fd_build_expert_weight(b, name_of(layer, weight, ".weight").text, n_out,
                                            input->shape[input->n_dim - 1], FD_REQUIRED);
    node.weight[1] = fd_build_expert_weight(b, name_of(layer, weight, ".bias").text, 1, n_out, bias);
    node.n_dim = 2;
    node.shape[0] = b->h->n_expert_used;
    node.shape[1] = n_out;
    return add_node(b, node);
}

int32_t fd_build_expert_sum(fd_builder *b, int32_t layer, const char *name, int32_t rows, int32_t weights) {
    if (b->code != FD_OK) return 0;
    fd_node node = node_of(FD_OP_EXPERT_SUM, layer, name, rows, weights);
    node.shape[0] = node_at(b, rows)->shape[1];
    return add_node(b, node);
}

/* The nodes that architectures list: one function an op. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/builder.h"

/* "blk.3.attn_q" + ".weight", or without the prefix outside the layers. */
static void full_name(int32_t layer, const char *name, const char *suffix, char *out, size_t size) {
    if (layer >= 0)
        snprintf(out, size, "blk.%d.%s%s", layer, name, suffix);
    else
        snprintf(out, size, "%s%s", name, suffix);
}

static fd_node node_of(fd_op op, int32_t layer, const char *name, int32_t a, int32_t b) {
    fd_node node = {.op = op, .layer = layer, .input = {a, b}, .weight = {-1, -1}, .n_dim = 1};
    full_name(layer, name, "", node.name, sizeof node.name);
    return node;
}

static int32_t add_node(fd_builder *b, fd_node node) {
    if (b->code != FD_OK) return 0;
    node.id = b->graph->n_node;
    if (!fd_builder_append(&b->graph->nodes, &b->graph->n_node, sizeof node, &node))
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_MEMORY, "out of memory"));
    return node.id;
}

static const fd_node *node_at(const fd_builder *b, int32_t id) {
    return &b->graph->nodes[id];
}

/* A node whose tensor has its first input's shape. */
static fd_node like_input(fd_builder *b, fd_op op, int32_t layer, const char *name, int32_t x, int32_t y) {
    fd_node node = node_of(op, layer, name, x, y);
    if (b->code != FD_OK) return node;
    const fd_node *input = node_at(b, x);
    node.n_dim = input->n_dim;
    memcpy(node.shape, input->shape, sizeof node.shape);
    return node;
}

int32_t fd_build_embed(fd_builder *b, const char *name) {
    fd_node node = node_of(FD_OP_EMBED, -1, name, -1, -1);
    char weight[128];
    full_name(-1, name, ".weight", weight, sizeof weight);
    node.weight[0] = fd_build_weight(b, weight, b->h->n_vocab, b->h->n_embd, FD_REQUIRED);
    node.shape[0] = b->h->n_embd;
    return add_node(b, node);
}

int32_t fd_build_rms_norm(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x) {
    fd_node node = like_input(b, FD_OP_RMS_NORM, layer, name, x, -1);
    if (b->code != FD_OK) return 0;
    char full[128];
    bool bare = fd_build_has(b, layer, weight); /* files of falcon-h1 */
    full_name(layer, weight, bare ? "" : ".weight", full, sizeof full);
    node.weight[0] = fd_build_weight(b, full, 1, node.shape[node.n_dim - 1], FD_REQUIRED);
    node.eps = b->h->rms_eps;
    return add_node(b, node);
}

int32_t fd_build_layer_norm(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x) {
    fd_node node = like_input(b, FD_OP_LAYER_NORM, layer, name, x, -1);
    if (b->code != FD_OK) return 0;
    char full[128];
    int64_t n = node.shape[node.n_dim - 1];
    if (weight) {
        full_name(layer, weight, ".weight", full, sizeof full);
        const fd_gguf_tensor *t = fd_gguf_find_tensor(b->gguf, full);
        bool each = node.n_dim == 2 && t && t->n_dim == 2 && t->shape[1] > 1;
        node.weight[0] = fd_build_weight(b, full, each ? node.shape[0] : 1, n, FD_REQUIRED);
        full_name(layer, weight, ".bias", full, sizeof full);
        node.weight[1] = fd_build_weight(b, full, each ? node.shape[0] : 1, n, FD_OPTIONAL);
    }
    node.eps = b->h->rms_eps;
    return add_node(b, node);
}

int32_t fd_build_rms_norm_groups(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x) {
    fd_node node = like_input(b, FD_OP_RMS_NORM, layer, name, x, -1);
    char full[128];
    full_name(layer, weight, ".weight", full, sizeof full);
    node.weight[0] = fd_build_weight(b, full, node.shape[0], node.shape[1], FD_REQUIRED);
    node.eps = b->h->rms_eps;
    return add_node(b, node);
}

int32_t fd_build_layer_norm_groups(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x,
                                   float eps) {
    fd_node node = like_input(b, FD_OP_LAYER_NORM, layer, name, x, -1);
    char full[128];
    full_name(layer, weight, ".weight", full, sizeof full);
    node.weight[0] = fd_build_flat_rows(b, full, node.shape[0], node.shape[1], FD_REQUIRED);
    full_name(layer, weight, ".bias", full, sizeof full);
    node.weight[1] = fd_build_flat_rows(b, full, node.shape[0], node.shape[1], FD_REQUIRED);
    node.eps = eps;
    return add_node(b, node);
}

int32_t fd_build_l2_norm(fd_builder *b, int32_t layer, const char *name, int32_t x, float eps) {
    fd_node node = like_input(b, FD_OP_L2_NORM, layer, name, x, -1);
    node.eps = eps;
    return add_node(b, node);
}

int32_t fd_build_norm(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x) {
    if (b->h->norm == FD_NORM_RMS) return fd_build_rms_norm(b, layer, name, weight, x);
    return fd_build_layer_norm(b, layer, name, b->h->norm == FD_NORM_LAYER ? weight : NULL, x);
}

int32_t fd_build_matmul_part(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x,
                             fd_part part, int32_t n_out, fd_need bias) {
    if (b->code != FD_OK) return 0;
    fd_node node = node_of(FD_OP_MATMUL, layer, name, x, -1);
    char full[128];
    full_name(layer, weight, ".weight", full, sizeof full);
    node.weight[0] = fd_build_weight_part(b, full, part, n_out, fd_node_width(node_at(b, x)), FD_REQUIRED);
    full_name(layer, weight, ".bias", full, sizeof full);
    node.weight[1] = fd_build_weight_part(b, full, part, 0, n_out, bias);
    node.shape[0] = n_out;
    return add_node(b, node);
}

int32_t fd_build_add_position(fd_builder *b, const char *name, const char *table, int32_t x) {
    fd_node node = like_input(b, FD_OP_ADD_POSITION, -1, name, x, -1);
    char full[128];
    full_name(-1, table, ".weight", full, sizeof full);
    node.weight[0] = fd_build_weight(b, full, b->h->n_ctx_train, b->h->n_embd, FD_REQUIRED);
    return add_node(b, node);
}

int32_t fd_build_add_vector(fd_builder *b, int32_t layer, const char *name, const char *vector, int32_t x) {
    fd_node node = like_input(b, FD_OP_ADD_VECTOR, layer, name, x, -1);
    char full[128];
    full_name(layer, vector, "", full, sizeof full);
    node.shape[0] = (int32_t)fd_node_width(&node);
    node.n_dim = 1;
    node.weight[0] = fd_build_weight(b, full, 1, node.shape[0], FD_REQUIRED);
    return add_node(b, node);
}

int32_t fd_build_mul_vector(fd_builder *b, int32_t layer, const char *name, const char *vector, int32_t x) {
    fd_node node = like_input(b, FD_OP_MUL_VECTOR, layer, name, x, -1);
    char full[128];
    full_name(layer, vector, "", full, sizeof full);
    node.weight[0] = fd_build_weight(b, full, 1, fd_node_width(&node), FD_REQUIRED);
    return add_node(b, node);
}

int32_t fd_build_matmul(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x, int32_t n_out,
                        fd_need bias) {
    if (b->code != FD_OK) return 0;
    fd_node node = node_of(FD_OP_MATMUL, layer, name, x, -1);
    char full[128];
    full_name(layer, weight, ".weight", full, sizeof full);
    node.weight[0] = fd_build_weight(b, full, n_out, fd_node_width(node_at(b, x)), FD_REQUIRED);
    full_name(layer, weight, ".bias", full, sizeof full);
    node.weight[1] = fd_build_weight(b, full, 1, n_out, bias);
    node.shape[0] = n_out;
    return add_node(b, node);
}

int32_t fd_build_heads(fd_builder *b, int32_t id, int32_t n_head) {
    if (b->code != FD_OK) return 0;
    fd_node *node = &b->graph->nodes[id];
    if (node->n_dim == 2 && node->shape[0] != 1) return id;
    node->shape[1] = (int32_t)fd_node_width(node) / n_head;
    node->shape[0] = n_head;
    node->n_dim = 2;
    return id;
}

int32_t fd_build_one_head(fd_builder *b, int32_t id) {
    if (b->code != FD_OK) return 0;
    fd_node *node = &b->graph->nodes[id];
    node->shape[1] = (int32_t)fd_node_width(node);
    node->shape[0] = 1;
    node->n_dim = 2;
    return id;
}

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
    return add_node(b, node);
}

int32_t fd_build_attn_alibi(fd_builder *b, int32_t layer, int32_t scores) {
    fd_node node = like_input(b, FD_OP_ATTN_ALIBI, layer, "attn_alibi", scores, -1);
    node.over_kv = true;
    node.max_bias = b->h->max_alibi_bias;
    return add_node(b, node);
}

int32_t fd_build_attn_temperature(fd_builder *b, int32_t layer, const char *name, int32_t q) {
    fd_node node = like_input(b, FD_OP_ATTN_TEMPERATURE, layer, name, q, -1);
    node.scale = b->h->temperature_scale;
    node.length = b->h->temperature_length;
    return add_node(b, node);
}

int32_t fd_build_attn_softmax(fd_builder *b, int32_t layer, int32_t scores, bool sinks) {
    fd_node node = like_input(b, FD_OP_ATTN_SOFTMAX, layer, "attn_weights", scores, -1);
    char full[128];
    full_name(layer, "attn_sinks", ".weight", full, sizeof full);
    if (sinks) node.weight[0] = fd_build_weight(b, full, 1, b->h->n_head, FD_REQUIRED);
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

int32_t fd_build_slice(fd_builder *b, int32_t layer, const char *name, int32_t x, int32_t first, int32_t n) {
    fd_node node = like_input(b, FD_OP_SLICE, layer, name, x, -1);
    node.shape[node.n_dim - 1] = n;
    node.first = first;
    return add_node(b, node);
}

int32_t fd_build_concat(fd_builder *b, int32_t layer, const char *name, int32_t x, int32_t y) {
    fd_node node = like_input(b, FD_OP_CONCAT, layer, name, x, y);
    if (b->code == FD_OK) node.shape[1] += node_at(b, y)->shape[1];
    return add_node(b, node);
}

int32_t fd_build_head_matmul(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x,
                             int32_t n_out) {
    fd_node node = like_input(b, FD_OP_HEAD_MATMUL, layer, name, x, -1);
    char full[128];
    full_name(layer, weight, ".weight", full, sizeof full);
    node.weight[0] = fd_build_matrices(b, full, node.shape[0], n_out, node.shape[1], FD_REQUIRED);
    node.shape[1] = n_out;
    return add_node(b, node);
}

int32_t fd_build_head_dot(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x) {
    fd_node node = like_input(b, FD_OP_HEAD_MATMUL, layer, name, x, -1);
    char full[128];
    full_name(layer, weight, ".weight", full, sizeof full);
    node.weight[0] = fd_build_flat_rows(b, full, node.shape[0], node.shape[1], FD_REQUIRED);
    node.shape[1] = 1;
    return add_node(b, node);
}

int32_t fd_build_conv(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t cache, int32_t n_tap,
                      fd_need bias) {
    fd_node node = like_input(b, FD_OP_CONV, layer, name, cache, -1);
    char full[128];
    full_name(layer, weight, ".weight", full, sizeof full);
    node.weight[0] = fd_build_weight(b, full, fd_node_width(&node), n_tap, FD_REQUIRED);
    full_name(layer, weight, ".bias", full, sizeof full);
    node.weight[1] = fd_build_weight(b, full, 1, fd_node_width(&node), bias);
    return add_node(b, node);
}

int32_t fd_build_token_shift(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t cache,
                             fd_part part) {
    fd_node node = like_input(b, FD_OP_TOKEN_SHIFT, layer, name, cache, -1);
    char full[128];
    full_name(layer, weight, ".weight", full, sizeof full);
    node.shape[0] = (int32_t)fd_node_width(&node);
    node.n_dim = 1;
    node.weight[0] = part.n_total > 1 ? fd_build_fused_row(b, full, part, node.shape[0])
                                      : fd_build_weight(b, full, 1, node.shape[0], FD_REQUIRED);
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

int32_t fd_build_ssm_scan(fd_builder *b, int32_t layer, const char *name, int32_t cache, int32_t read,
                          const int32_t shape[2], bool each_state) {
    if (b->code != FD_OK) return 0;
    fd_node node = node_of(FD_OP_SSM_SCAN, layer, name, cache, read);
    char full[128];
    node.n_dim = 2;
    node.shape[0] = shape[0];
    node.shape[1] = shape[1];
    full_name(layer, "ssm_a", "", full, sizeof full);
    node.weight[0] = fd_build_weight(b, full, shape[0], each_state ? node_at(b, read)->shape[1] : 1, FD_REQUIRED);
    full_name(layer, "ssm_d", "", full, sizeof full);
    node.weight[1] = fd_build_weight(b, full, each_state ? 1 : shape[0], each_state ? shape[0] : 1, FD_REQUIRED);
    return add_node(b, node);
}

/* The clamped SwiGLU of gpt-oss: its constants are in no file (OpenAI's reference code, gpt_oss/torch/model.py). */
#define SWIGLU_CLAMP_SLOPE 1.702f
#define SWIGLU_CLAMP_LIMIT 7.0f

int32_t fd_build_gated(fd_builder *b, int32_t layer, const char *name, fd_op activation, int32_t gate, int32_t up) {
    fd_node node = like_input(b, activation, layer, name, gate, up);
    if (activation == FD_OP_SWIGLU_CLAMP) {
        node.slope = SWIGLU_CLAMP_SLOPE;
        node.limit = SWIGLU_CLAMP_LIMIT;
    }
    return add_node(b, node);
}

bool fd_is_gated(fd_op activation) {
    return activation == FD_OP_SILU_MUL || activation == FD_OP_GELU_MUL || activation == FD_OP_SWIGLU_CLAMP;
}

int32_t fd_build_activation(fd_builder *b, int32_t layer, const char *name, fd_op activation, int32_t x) {
    return add_node(b, like_input(b, activation, layer, name, x, -1));
}

int32_t fd_build_clamp(fd_builder *b, int32_t layer, const char *name, int32_t x, float limit) {
    fd_node node = like_input(b, FD_OP_CLAMP, layer, name, x, -1);
    node.limit = limit;
    return add_node(b, node);
}

int32_t fd_build_add(fd_builder *b, int32_t layer, const char *name, int32_t x, int32_t y) {
    return add_node(b, like_input(b, FD_OP_ADD, layer, name, x, y));
}

int32_t fd_build_mul(fd_builder *b, int32_t layer, const char *name, int32_t x, int32_t y) {
    return add_node(b, like_input(b, FD_OP_MUL, layer, name, x, y));
}

int32_t fd_build_scale(fd_builder *b, int32_t layer, const char *name, int32_t x, float factor) {
    fd_node node = like_input(b, FD_OP_SCALE, layer, name, x, -1);
    node.scale = factor;
    return add_node(b, node);
}

int32_t fd_build_softcap(fd_builder *b, int32_t layer, const char *name, int32_t x, float cap) {
    fd_node node = like_input(b, FD_OP_SOFTCAP, layer, name, x, -1);
    node.softcap = cap;
    return add_node(b, node);
}

/* ---- experts ---- */

int32_t fd_build_softmax(fd_builder *b, int32_t layer, const char *name, int32_t x) {
    return add_node(b, like_input(b, FD_OP_SOFTMAX, layer, name, x, -1));
}

int32_t fd_build_top_k(fd_builder *b, int32_t layer, const char *name, int32_t x) {
    fd_node node = node_of(FD_OP_TOP_K, layer, name, x, -1);
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
    char full[128];
    full_name(layer, weight, ".weight", full, sizeof full);
    node.weight[0] = fd_build_expert_weight(b, full, n_out, input->shape[input->n_dim - 1], FD_REQUIRED);
    full_name(layer, weight, ".bias", full, sizeof full);
    node.weight[1] = fd_build_expert_weight(b, full, 1, n_out, bias);
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

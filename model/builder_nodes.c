/* The nodes that architectures list, but for those that mix (builder_mixers.c): one function an op. */
#include <math.h>

#include "model/builder_nodes.h"

int32_t fd_build_embed_of(fd_builder *b, const char *name, int32_t n) {
    fd_node node = node_of(FD_OP_EMBED, -1, name, -1, -1);
    node.weight[0] = fd_build_weight(b, name_of(-1, name, ".weight").text, b->h->n_vocab, n, FD_REQUIRED);
    node.shape[0] = n;
    return add_node(b, node);
}

int32_t fd_build_embed(fd_builder *b) {
    return fd_build_embed_of(b, "token_embd", b->h->n_embd);
}

int32_t fd_build_rms_norm(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x) {
    fd_node node = like_input(b, FD_OP_RMS_NORM, layer, name, x, -1);
    if (b->code != FD_OK) return 0;
    bool bare = fd_build_has(b, layer, weight); /* files of falcon-h1 */
    node.weight[0] = fd_build_weight(b, name_of(layer, weight, bare ? "" : ".weight").text, 1,
                                     node.shape[node.n_dim - 1], FD_REQUIRED);
    node.eps = b->h->rms_eps;
    return add_node(b, node);
}

static int32_t layer_norm(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x) {
    fd_node node = like_input(b, FD_OP_LAYER_NORM, layer, name, x, -1);
    if (b->code != FD_OK) return 0;
    int64_t n = node.shape[node.n_dim - 1];
    if (weight) {
        const fd_gguf_tensor *t = fd_gguf_find_tensor(b->gguf, name_of(layer, weight, ".weight").text);
        bool each = node.n_dim == 2 && t && t->n_dim == 2 && t->shape[1] > 1;
        node.weight[0] =
            fd_build_weight(b, name_of(layer, weight, ".weight").text, each ? node.shape[0] : 1, n, FD_REQUIRED);
        node.weight[1] =
            fd_build_weight(b, name_of(layer, weight, ".bias").text, each ? node.shape[0] : 1, n, FD_OPTIONAL);
    }
    node.eps = b->h->rms_eps;
    return add_node(b, node);
}

int32_t fd_build_rms_norm_groups(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x) {
    fd_node node = like_input(b, FD_OP_RMS_NORM, layer, name, x, -1);
    node.weight[0] =
        fd_build_weight(b, name_of(layer, weight, ".weight").text, node.shape[0], node.shape[1], FD_REQUIRED);
    node.eps = b->h->rms_eps;
    return add_node(b, node);
}

int32_t fd_build_layer_norm_groups(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x,
                                   float eps) {
    fd_node node = like_input(b, FD_OP_LAYER_NORM, layer, name, x, -1);
    node.weight[0] = fd_build_flat_rows(b, name_of(layer, weight, ".weight").text, node.shape[0], node.shape[1]);
    node.weight[1] = fd_build_flat_rows(b, name_of(layer, weight, ".bias").text, node.shape[0], node.shape[1]);
    node.eps = eps;
    return add_node(b, node);
}

int32_t fd_build_l2_norm(fd_builder *b, int32_t layer, const char *name, int32_t x, float eps) {
    fd_node node = like_input(b, FD_OP_L2_NORM, layer, name, x, -1);
    node.eps = eps;
    return add_node(b, node);
}

int32_t fd_build_unit_norm(fd_builder *b, int32_t layer, const char *unit, const char *name, int32_t x) {
    if (b->code != FD_OK) return 0;
    const fd_node *input = node_at(b, x);
    const float n = (float)input->shape[input->n_dim - 1];
    return fd_build_scale(b, layer, name, fd_build_l2_norm(b, layer, unit, x, n * b->h->rms_eps), sqrtf(n));
}

int32_t fd_build_norm(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x) {
    if (b->h->norm == FD_NORM_RMS) return fd_build_rms_norm(b, layer, name, weight, x);
    return layer_norm(b, layer, name, b->h->norm == FD_NORM_LAYER ? weight : NULL, x);
}

int32_t fd_build_matmul_part(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x,
                             fd_part part, int32_t n_out, fd_need bias) {
    if (b->code != FD_OK) return 0;
    fd_node node = node_of(FD_OP_MATMUL, layer, name, x, -1);
    node.weight[0] = fd_build_weight_part(b, name_of(layer, weight, ".weight").text, part, n_out,
                                          fd_node_width(node_at(b, x)), FD_REQUIRED);
    node.weight[1] = fd_build_weight_part(b, name_of(layer, weight, ".bias").text, part, 0, n_out, bias);
    node.shape[0] = n_out;
    return add_node(b, node);
}

int32_t fd_build_add_position(fd_builder *b, int32_t x) {
    fd_node node = like_input(b, FD_OP_ADD_POSITION, -1, "inp_pos", x, -1);
    node.weight[0] = fd_build_weight(b, "position_embd.weight", b->h->n_ctx_train, b->h->n_embd, FD_REQUIRED);
    return add_node(b, node);
}

int32_t fd_build_add_vector(fd_builder *b, int32_t layer, const char *name, const char *vector, int32_t x) {
    fd_node node = like_input(b, FD_OP_ADD_VECTOR, layer, name, x, -1);
    node.shape[0] = (int32_t)fd_node_width(&node);
    node.n_dim = 1;
    node.weight[0] = fd_build_weight(b, name_of(layer, vector, "").text, 1, node.shape[0], FD_REQUIRED);
    return add_node(b, node);
}

int32_t fd_build_mul_vector(fd_builder *b, int32_t layer, const char *name, const char *vector, int32_t x) {
    fd_node node = like_input(b, FD_OP_MUL_VECTOR, layer, name, x, -1);
    node.weight[0] = fd_build_weight(b, name_of(layer, vector, "").text, 1, fd_node_width(&node), FD_REQUIRED);
    return add_node(b, node);
}

int32_t fd_build_matmul(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x, int32_t n_out,
                        fd_need bias) {
    if (b->code != FD_OK) return 0;
    fd_node node = node_of(FD_OP_MATMUL, layer, name, x, -1);
    node.weight[0] =
        fd_build_weight(b, name_of(layer, weight, ".weight").text, n_out, fd_node_width(node_at(b, x)), FD_REQUIRED);
    node.weight[1] = fd_build_weight(b, name_of(layer, weight, ".bias").text, 1, n_out, bias);
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

int32_t fd_build_scale_of_file(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x) {
    const weight_name full = name_of(layer, weight, ".weight");
    int32_t id = fd_build_weight(b, full.text, 1, 1, FD_REQUIRED);
    const fd_weight *w = b->code == FD_OK && id >= 0 ? &b->graph->weights[id] : NULL;
    float factor = 1; /* of metadata alone */
    if (w && w->dtype != FD_F32)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_UNSUPPORTED, "weight %s: type %s, expected F32", full.text,
                                        fd_dtype_get(w->dtype)->name));
    else if (w)
        memcpy(&factor, w->data, sizeof factor);
    return fd_build_scale(b, layer, name, x, factor);
}

int32_t fd_build_softcap(fd_builder *b, int32_t layer, const char *name, int32_t x, float cap) {
    fd_node node = like_input(b, FD_OP_SOFTCAP, layer, name, x, -1);
    node.softcap = cap;
    return add_node(b, node);
}

int32_t fd_build_softmax(fd_builder *b, int32_t layer, const char *name, int32_t x) {
    return add_node(b, like_input(b, FD_OP_SOFTMAX, layer, name, x, -1));
}

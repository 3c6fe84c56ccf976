#include "model/builder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/quant.h"

static fd_code stick(fd_builder *b, fd_code code) {
    if (b->code == FD_OK) b->code = code;
    return code;
}

/* Appends a copy of `item` to a growing array; doubles the space at powers of two. */
static bool append(void *array, int32_t *count, size_t size, const void *item) {
    void **data = array;
    if ((*count & (*count - 1)) == 0) {
        void *grown = realloc(*data, size * (size_t)(*count ? *count * 2 : 1));
        if (!grown) return false;
        *data = grown;
    }
    memcpy((char *)*data + size * (size_t)*count, item, size);
    (*count)++;
    return true;
}

static void note(fd_builder *b, char (**names)[128], int32_t *count, const char *name) {
    char copy[128];
    snprintf(copy, sizeof copy, "%s", name);
    if (!append(names, count, sizeof copy, copy)) stick(b, fd_fail(b->err, FD_ERR_MEMORY, "out of memory"));
}

static void check_shape(fd_builder *b, const fd_gguf_tensor *t, int64_t n_row, int64_t n_col) {
    bool vector_ok = n_row == 1 && t->n_dim == 1 && t->shape[0] == n_col;
    bool matrix_ok = t->n_dim == 2 && t->shape[0] == n_col && t->shape[1] == n_row;
    if (vector_ok || matrix_ok) return;
    char found[96] = "";
    for (int32_t i = 0, at = 0; i < t->n_dim; i++)
        at += snprintf(found + at, sizeof found - (size_t)at, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    if (n_row == 1)
        stick(b, fd_fail(b->err, FD_ERR_INPUT, "weight %s: shape [%s], expected [%lld]", t->name, found, (long long)n_col));
    else
        stick(b, fd_fail(b->err, FD_ERR_INPUT, "weight %s: shape [%s], expected [%lld, %lld]", t->name, found,
                         (long long)n_col, (long long)n_row));
}

int32_t fd_build_weight(fd_builder *b, const char *name, int64_t n_row, int64_t n_col, fd_need need) {
    if (b->code != FD_OK) return -1;
    for (int32_t i = 0; i < b->graph->n_weight; i++)
        if (strcmp(b->graph->weights[i].name, name) == 0) return i;
    const fd_gguf_tensor *t = fd_gguf_find_tensor(b->gguf, name);
    if (!t) {
        if (need == FD_REQUIRED) note(b, &b->report->missing, &b->report->n_missing, name);
        return -1;
    }
    b->used[t - fd_gguf_tensor_at(b->gguf, 0)] = true;
    check_shape(b, t, n_row, n_col);
    if (!fd_can_dequantize(t->dtype))
        stick(b, fd_fail(b->err, FD_ERR_UNSUPPORTED, "weight %s: type %s is not implemented yet", name,
                         fd_dtype_get(t->dtype)->name));
    fd_weight weight = {.dtype = t->dtype, .n_row = n_row, .n_col = n_col, .data = t->data, .bytes = t->bytes};
    snprintf(weight.name, sizeof weight.name, "%s", name);
    if (b->code == FD_OK && !append(&b->graph->weights, &b->graph->n_weight, sizeof weight, &weight))
        stick(b, fd_fail(b->err, FD_ERR_MEMORY, "out of memory"));
    return b->graph->n_weight - 1;
}

/* "blk.3.attn_q" + ".weight", or without the prefix outside the layers. */
static void full_name(int32_t layer, const char *name, const char *suffix, char *out, size_t size) {
    if (layer >= 0) snprintf(out, size, "blk.%d.%s%s", layer, name, suffix);
    else snprintf(out, size, "%s%s", name, suffix);
}

static fd_node node_of(fd_op op, int32_t layer, const char *name, int32_t a, int32_t b) {
    fd_node node = {.op = op, .layer = layer, .input = {a, b}, .weight = {-1, -1}, .n_dim = 1};
    full_name(layer, name, "", node.name, sizeof node.name);
    return node;
}

static int32_t add_node(fd_builder *b, fd_node node) {
    if (b->code != FD_OK) return 0;
    node.id = b->graph->n_node;
    if (!append(&b->graph->nodes, &b->graph->n_node, sizeof node, &node))
        stick(b, fd_fail(b->err, FD_ERR_MEMORY, "out of memory"));
    return node.id;
}

static const fd_node *node_at(const fd_builder *b, int32_t id) { return &b->graph->nodes[id]; }

static int32_t width(const fd_node *node) { return node->shape[0] * (node->n_dim == 2 ? node->shape[1] : 1); }

int32_t fd_build_embed(fd_builder *b, const char *name) {
    fd_node node = node_of(FD_OP_EMBED, -1, name, -1, -1);
    char weight[128];
    full_name(-1, name, ".weight", weight, sizeof weight);
    node.weight[0] = fd_build_weight(b, weight, b->h->n_vocab, b->h->n_embd, FD_REQUIRED);
    node.shape[0] = b->h->n_embd;
    return add_node(b, node);
}

int32_t fd_build_rms_norm(fd_builder *b, int32_t layer, const char *name, int32_t x) {
    if (b->code != FD_OK) return 0;
    fd_node node = node_of(FD_OP_RMS_NORM, layer, name, x, -1);
    char weight[128];
    full_name(layer, name, ".weight", weight, sizeof weight);
    node.shape[0] = width(node_at(b, x));
    node.weight[0] = fd_build_weight(b, weight, 1, node.shape[0], FD_REQUIRED);
    node.eps = b->h->rms_eps;
    return add_node(b, node);
}

int32_t fd_build_matmul(fd_builder *b, int32_t layer, const char *name, const char *weight, int32_t x, int32_t n_out,
                        fd_need bias) {
    if (b->code != FD_OK) return 0;
    fd_node node = node_of(FD_OP_MATMUL, layer, name, x, -1);
    char full[128];
    full_name(layer, weight, ".weight", full, sizeof full);
    node.weight[0] = fd_build_weight(b, full, n_out, width(node_at(b, x)), FD_REQUIRED);
    full_name(layer, weight, ".bias", full, sizeof full);
    node.weight[1] = fd_build_weight(b, full, 1, n_out, bias);
    node.shape[0] = n_out;
    return add_node(b, node);
}

int32_t fd_build_heads(fd_builder *b, int32_t id, int32_t n_head) {
    if (b->code != FD_OK) return 0;
    fd_node *node = &b->graph->nodes[id];
    node->n_dim = 2;
    node->shape[1] = node->shape[0] / n_head;
    node->shape[0] = n_head;
    return id;
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

int32_t fd_build_rope(fd_builder *b, int32_t layer, const char *name, int32_t x, int32_t freqs) {
    fd_node node = like_input(b, FD_OP_ROPE, layer, name, x, -1);
    node.weight[0] = freqs;
    node.rope = b->h->rope;
    return add_node(b, node);
}

int32_t fd_build_kv_write(fd_builder *b, int32_t layer, const char *name, int32_t x) {
    return add_node(b, like_input(b, FD_OP_KV_WRITE, layer, name, x, -1));
}

int32_t fd_build_attn_scores(fd_builder *b, int32_t layer, int32_t q, int32_t cache_k) {
    fd_node node = node_of(FD_OP_ATTN_SCORES, layer, "attn_scores", q, cache_k);
    node.n_dim = 2;
    node.shape[0] = b->h->n_head;
    node.over_kv = true;
    node.scale = 1.0f / sqrtf((float)b->h->head_dim);
    return add_node(b, node);
}

int32_t fd_build_attn_softmax(fd_builder *b, int32_t layer, int32_t scores) {
    fd_node node = like_input(b, FD_OP_ATTN_SOFTMAX, layer, "attn_weights", scores, -1);
    node.over_kv = true;
    return add_node(b, node);
}

int32_t fd_build_attn_mix(fd_builder *b, int32_t layer, int32_t weights, int32_t cache_v) {
    fd_node node = node_of(FD_OP_ATTN_MIX, layer, "attn_out", weights, cache_v);
    node.n_dim = 2;
    node.shape[0] = b->h->n_head;
    node.shape[1] = b->h->head_dim;
    return add_node(b, node);
}

int32_t fd_build_silu_mul(fd_builder *b, int32_t layer, const char *name, int32_t gate, int32_t up) {
    return add_node(b, like_input(b, FD_OP_SILU_MUL, layer, name, gate, up));
}

int32_t fd_build_add(fd_builder *b, int32_t layer, const char *name, int32_t x, int32_t y) {
    return add_node(b, like_input(b, FD_OP_ADD, layer, name, x, y));
}

static void note_unused(fd_builder *b) {
    for (size_t i = 0; i < fd_gguf_n_tensor(b->gguf); i++)
        if (!b->used[i]) note(b, &b->report->unused, &b->report->n_unused, fd_gguf_tensor_at(b->gguf, i)->name);
}

static fd_code missing_error(const fd_builder *b) {
    const fd_weight_report *r = b->report;
    char more[48] = "";
    if (r->n_missing > 1) snprintf(more, sizeof more, " (and %d more weights)", r->n_missing - 1);
    return fd_fail(b->err, FD_ERR_INPUT, "weight %s: missing, the %s graph needs it%s", r->missing[0], b->h->arch, more);
}

fd_code fd_graph_build(const fd_gguf *gguf, fd_graph **out, fd_weight_report *report, fd_error *err) {
    *out = NULL;
    fd_weight_report own_report = {0};
    if (report) memset(report, 0, sizeof *report);
    fd_string name;
    FD_TRY(fd_gguf_get_string(gguf, "general.architecture", &name, err));
    if (!name.data) return fd_fail(err, FD_ERR_INPUT, "key general.architecture: missing");
    char known[256];
    const fd_arch *arch = fd_arch_find(name, known, sizeof known);
    if (!arch)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "architecture \"%.*s\" is not implemented; known: %s",
                       (int)(name.size < 64 ? name.size : 64), name.data, known);

    fd_builder b = {.gguf = gguf, .report = report ? report : &own_report, .err = err};
    b.graph = calloc(1, sizeof *b.graph);
    b.used = calloc(fd_gguf_n_tensor(gguf) + 1, sizeof *b.used);
    if (!b.graph || !b.used) stick(&b, fd_fail(err, FD_ERR_MEMORY, "out of memory"));
    if (b.code == FD_OK) stick(&b, fd_hparams_read(gguf, arch, &b.graph->hparams, err));
    if (b.code == FD_OK) {
        b.h = &b.graph->hparams;
        arch->list(&b);
        if (b.code == FD_OK) note_unused(&b);
        if (b.code == FD_OK && b.report->n_missing > 0) stick(&b, missing_error(&b));
        if (b.code == FD_OK) stick(&b, fd_graph_validate(b.graph, err));
    }
    free(b.used);
    fd_weight_report_free(&own_report);
    if (b.code != FD_OK) {
        fd_graph_free(b.graph);
        return b.code;
    }
    *out = b.graph;
    return FD_OK;
}

void fd_weight_report_free(fd_weight_report *report) {
    free(report->missing);
    free(report->unused);
    memset(report, 0, sizeof *report);
}

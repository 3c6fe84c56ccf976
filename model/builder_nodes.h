/* What the files share that make nodes: a node, its name and its weights' names. Used by builder_*.c only. */
#ifndef FD_MODEL_BUILDER_NODES_H
#define FD_MODEL_BUILDER_NODES_H

#include <stdio.h>
#include <string.h>

#include "model/builder.h"

/* "blk.3.attn_q" + ".weight", or without the prefix outside the layers. */
typedef struct weight_name {
    char text[128];
} weight_name;
static inline weight_name name_of(int32_t layer, const char *name, const char *suffix) {
    weight_name full;
    if (layer >= 0)
        snprintf(full.text, sizeof full.text, "blk.%d.%s%s", layer, name, suffix);
    else
        snprintf(full.text, sizeof full.text, "%s%s", name, suffix);
    return full;
}

static inline fd_node node_of(fd_op op, int32_t layer, const char *name, int32_t a, int32_t b) {
    fd_node node = {.op = op, .layer = layer, .input = {a, b}, .weight = {-1, -1}, .n_dim = 1};
    snprintf(node.name, sizeof node.name, "%.63s", name_of(layer, name, "").text);
    return node;
}

static inline int32_t add_node(fd_builder *b, fd_node node) {
    if (b->code != FD_OK) return 0;
    node.id = b->graph->n_node;
    if (!fd_builder_append(&b->graph->nodes, &b->graph->n_node, sizeof node, &node))
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_MEMORY, "out of memory"));
    return node.id;
}

static inline const fd_node *node_at(const fd_builder *b, int32_t id) {
    return &b->graph->nodes[id];
}

/* A node whose tensor has its first input's shape. */
static inline fd_node like_input(fd_builder *b, fd_op op, int32_t layer, const char *name, int32_t x, int32_t y) {
    fd_node node = node_of(op, layer, name, x, y);
    if (b->code != FD_OK) return node;
    const fd_node *input = node_at(b, x);
    node.n_dim = input->n_dim;
    memcpy(node.shape, input->shape, sizeof node.shape);
    return node;
}

#endif

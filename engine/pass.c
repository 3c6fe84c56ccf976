#include "engine/pass.h"

#include <assert.h>

const fd_node *fd_pass_node(const fd_pass *pass, int32_t node) {
    return &pass->plan->graph->nodes[node];
}

fd_rows fd_pass_rows(const fd_pass *pass, int32_t node) {
    return pass->plan->all_rows[node] ? FD_ROWS_ALL : pass->tail;
}

int64_t fd_pass_row_bytes(const fd_pass *pass, const fd_node *node) {
    return fd_node_row_stride(node, pass->n_kv) * (int64_t)sizeof(float);
}

float *fd_pass_tensor(const fd_pass *pass, int32_t id) {
    const fd_engine *e = pass->engine;
    const fd_node *node = fd_pass_node(pass, id);
    if (node->op == FD_OP_KV_WRITE) {
        size_t bytes = fd_cache_bytes(node, e->exec.n_ctx, fd_cache_is_half(node, e->fast)) * (size_t)e->exec.sequence;
        return (float *)(void *)((char *)e->state.cache[id] + bytes);
    }
    if (pass->tensors) return pass->tensors[id];
    int32_t slot = pass->plan->slot_of[FD_REAL][id];
    return slot < 0 ? NULL : pass->slots->of[FD_REAL][slot].data;
}

uint16_t *fd_pass_half(const fd_pass *pass, int32_t node) {
    int32_t slot = pass->plan->slot_of[FD_HALF][node];
    return slot < 0 ? NULL : pass->slots->of[FD_HALF][slot].data;
}

const float *fd_pass_input(const fd_pass *pass, int32_t node, int32_t input) {
    const fd_node *from = fd_pass_node(pass, input);
    const float *rows = fd_pass_tensor(pass, input);
    bool last_of_all = fd_pass_rows(pass, node) == FD_ROWS_LAST && fd_pass_rows(pass, input) == FD_ROWS_ALL;
    if (from->op == FD_OP_KV_WRITE || !last_of_all) return rows;
    return rows + (pass->n_tok - 1) * fd_node_row_stride(from, pass->n_kv);
}

float *fd_pass_inner(const fd_pass *pass, int32_t node) {
    return pass->tensors ? fd_pass_tensor(pass, node) : NULL;
}

const fd_device_matrix *fd_pass_matrix(const fd_pass *pass, const fd_node *node) {
    const fd_device_matrix *matrix = &pass->engine->weights.matrix[node->weight[0]];
    assert(matrix->data);
    return matrix;
}

const float *fd_pass_vector(const fd_pass *pass, int32_t weight) {
    return weight < 0 ? NULL : pass->engine->weights.vector[weight];
}

fd_rope_shape fd_pass_rope(const fd_pass *pass, int32_t id) {
    if (id < 0) return (fd_rope_shape){.n_rot = 0};
    const fd_node *node = fd_pass_node(pass, id);
    const fd_rope_tables *tables = &pass->engine->state.ropes[pass->engine->state.rope_of[id]];
    return (fd_rope_shape){.n_head = node->shape[0],
                           .head_dim = node->shape[1],
                           .n_rot = node->rope.n_rot,
                           .interleaved = node->rope.pairing == FD_ROPE_INTERLEAVED,
                           .cosine = tables->cosine,
                           .sine = tables->sine};
}

#include <assert.h>

#include "engine/internal.h"

fd_rows fd_run_rows(const fd_engine *engine, const fd_run *run, int32_t node) {
    return engine->feeds_cache[node] ? FD_ROWS_ALL : run->tail;
}

const fd_device_matrix *fd_node_matrix(const fd_engine *engine, const fd_node *node) {
    const fd_device_matrix *matrix = &engine->weights.matrix[node->weight[0]];
    assert(matrix->data);
    return matrix;
}

const float *fd_engine_vector(const fd_engine *engine, int32_t weight) {
    return weight < 0 ? NULL : engine->weights.vector[weight];
}

fd_rope_shape fd_node_rope(const fd_engine *engine, int32_t id) {
    const fd_node *node = &engine->exec.graph->nodes[id];
    const fd_rope_tables *tables = &engine->ropes[engine->rope_of[id]];
    return (fd_rope_shape){.n_head = node->shape[0],
                           .head_dim = node->shape[1],
                           .n_rot = node->rope.n_rot,
                           .interleaved = node->rope.pairing == FD_ROPE_INTERLEAVED,
                           .cosine = tables->cosine,
                           .sine = tables->sine};
}

int64_t fd_run_row_bytes(const fd_run *run, const fd_node *node) {
    return fd_node_row_stride(node, run->n_kv) * (int64_t)sizeof(float);
}

size_t fd_run_slot_bytes(const fd_engine *engine, const fd_run *run, int32_t slot) {
    size_t most = 0;
    for (int32_t i = 0; i < engine->exec.graph->n_node; i++) {
        fd_rows rows = fd_run_rows(engine, run, i);
        if (run->plan->slot_of[i] != slot || rows == FD_ROWS_NONE) continue;
        size_t bytes = (size_t)fd_run_row_bytes(run, &engine->exec.graph->nodes[i]) *
                       (size_t)(rows == FD_ROWS_ALL ? run->n_tok : 1);
        if (bytes > most) most = bytes;
    }
    return most;
}

int64_t fd_cache_floats(const fd_engine *engine, int32_t node) {
    return (int64_t)(fd_cache_bytes(&engine->exec.graph->nodes[node], engine->exec.n_ctx, false) / sizeof(float));
}

float *fd_run_tensor(const fd_engine *engine, const fd_run *run, int32_t node) {
    if (engine->exec.graph->nodes[node].op == FD_OP_KV_WRITE)
        return engine->cache[node] + fd_cache_floats(engine, node) * engine->exec.sequence;
    if (run->tensors) return run->tensors[node];
    return run->slots[run->plan->slot_of[node]].data;
}

const float *fd_run_input(const fd_engine *engine, const fd_run *run, int32_t node, int32_t input) {
    const fd_node *from = &engine->exec.graph->nodes[input];
    const float *rows = fd_run_tensor(engine, run, input);
    bool last_of_all = fd_run_rows(engine, run, node) == FD_ROWS_LAST && fd_run_rows(engine, run, input) == FD_ROWS_ALL;
    if (from->op == FD_OP_KV_WRITE || !last_of_all) return rows;
    return rows + (run->n_tok - 1) * fd_node_row_stride(from, run->n_kv);
}

fd_code fd_run_plan(fd_engine *engine, const fd_run *whole, fd_watch *watch, fd_error *err) {
    /* The first kernel follows a copy, not a kernel: it waits for it in the ordinary way. */
    fd_launch_context first_queue = *whole->queue;
    fd_run first = *whole;
    first_queue.overlap = false;
    first.queue = &first_queue;
    for (int32_t i = 0; i < whole->plan->n_item; i++) {
        const fd_run *run = i == 0 ? &first : whole;
        const fd_item *item = &run->plan->items[i];
        int32_t leading = item->kind == FD_ITEM_MATVEC ? item->matvec.matmul[0] : item->node;
        bool one = item->kind == FD_ITEM_NODE || item->kind == FD_ITEM_MATVEC || item->kind == FD_ITEM_ATTENTION;
        if (one && fd_run_rows(engine, run, leading) == FD_ROWS_NONE) continue;
        if (item->kind != FD_ITEM_NODE) {
            FD_TRY(fd_launch_item(engine, run, item, err));
        } else {
            bool by_host = engine->exec.graph->nodes[item->node].override != NULL;
            FD_TRY(by_host ? fd_run_override(engine, run, item->node, err)
                           : fd_launch_node(engine, run, item->node, err));
            if (watch) FD_TRY(fd_watch_node(engine, run, item->node, watch, err));
        }
    }
    return watch ? fd_watch_flush(engine, watch, err) : FD_OK;
}

#include <string.h>

#include "engine/internal.h"

/* Tensors gather here before the host looks; one that is larger gets the room it needs. */
enum { WATCH_BYTES = 64 << 20 };

bool fd_watch_wants(const fd_engine *engine, int32_t id) {
    const fd_observer *observer = &engine->exec.observer;
    return !observer->wants || observer->wants(observer->user, &engine->exec.graph->nodes[id]);
}

fd_code fd_watch_node(fd_engine *engine, const fd_run *run, int32_t id, fd_watch *watch, fd_error *err) {
    const fd_node *node = &engine->exec.graph->nodes[id];
    if (!fd_watch_wants(engine, id)) return FD_OK;
    const char *from = (const char *)fd_run_tensor(engine, run, id);
    if (node->op == FD_OP_KV_WRITE) from += (size_t)fd_run_row_bytes(run, node) * (size_t)run->pos0;
    return fd_watch_rows(engine, run, id, from, watch, err);
}

fd_code fd_watch_rows(fd_engine *engine, const fd_run *run, int32_t id, const void *from, fd_watch *watch,
                      fd_error *err) {
    const fd_node *node = &engine->exec.graph->nodes[id];
    size_t size = (size_t)fd_run_row_bytes(run, node) * (size_t)run->n_tok;
    if (watch->used + size > watch->pinned.size) {
        FD_TRY(fd_watch_flush(engine, watch, err));
        FD_TRY(fd_pinned_reserve(&watch->pinned, size > WATCH_BYTES ? size : WATCH_BYTES, "observed tensors", err));
    }
    FD_TRY(fd_cuda_check(cudaMemcpyAsync((char *)watch->pinned.data + watch->used, from, size, cudaMemcpyDeviceToHost,
                                         engine->queue.stream),
                         node->name, err));
    watch->pending[watch->n_pending++] = (fd_pending){.node = id,
                                                      .pos0 = run->pos0,
                                                      .n_pos = run->n_tok,
                                                      .row_stride = fd_node_row_stride(node, run->n_kv),
                                                      .offset = watch->used};
    watch->used += fd_align(size);
    return FD_OK;
}

fd_code fd_watch_flush(fd_engine *engine, fd_watch *watch, fd_error *err) {
    const fd_observer *observer = &engine->exec.observer;
    int32_t n = watch->n_pending;
    watch->n_pending = 0;
    watch->used = 0;
    if (n == 0) return FD_OK;
    FD_TRY(fd_cuda_check(cudaStreamSynchronize(engine->queue.stream), "observed tensors", err));
    for (int32_t i = 0; i < n; i++) {
        const fd_pending *p = &watch->pending[i];
        fd_observation seen = {.graph = engine->exec.graph,
                               .node = &engine->exec.graph->nodes[p->node],
                               .step = engine->exec.step,
                               .pos0 = p->pos0,
                               .n_pos = p->n_pos,
                               .row_stride = p->row_stride,
                               .dtype = FD_F32,
                               .data = (const char *)watch->pinned.data + p->offset};
        FD_TRY(observer->observe(observer->user, &seen, err));
    }
    return FD_OK;
}

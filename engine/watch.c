/* Observed batches: node by node, each tensor brought to the host when it has been computed; where its elements are not
 * wanted, what was worked out of them on the device instead. */
#include <string.h>

#include "engine/internal.h"
#include "kernels/observe/summary.h"

/* Tensors gather here before the host looks; one that is larger gets the room it needs. */
enum { WATCH_BYTES = 64 << 20 };

/* Where the parts of what is worked out lie, for n rows. */
typedef struct parts {
    size_t prints, stats, entropy, sink, top, bytes;
} parts;

static parts parts_of(const fd_graph *graph, int32_t id, unsigned wants, int32_t n) {
    const fd_node *node = &graph->nodes[id];
    size_t rows = (size_t)n;
    bool health = wants & FD_WANT_HEALTH, weights = health && node->op == FD_OP_ATTN_SOFTMAX;
    parts p = {0};
    p.stats = fd_align(rows * sizeof(fd_fingerprint));
    p.entropy = p.stats + (wants & FD_WANT_STATS ? fd_align(rows * sizeof(fd_stats)) : 0);
    p.sink = p.entropy + (weights ? fd_align(rows * (size_t)node->shape[0] * sizeof(float)) : 0);
    p.top = p.sink + (p.sink - p.entropy);
    p.bytes = p.top + (health && id == graph->n_node - 1 ? fd_align(rows * sizeof(fd_top_logits)) : 0);
    return p;
}

static fd_row_view view_of(const fd_run *run, const fd_node *node, const void *rows) {
    fd_row_view view = {.data = rows, .row_stride = fd_node_row_stride(node, run->n_kv)};
    if (node->over_kv) {
        view.n_run = node->shape[0];
        view.run_stride = run->n_kv;
    } else {
        view.n = (int32_t)view.row_stride;
    }
    return view;
}

/* Fingerprints and what else is wanted of the node's rows, to fd_watch.found. One stream: the area serves all nodes in
 * turn. */
static fd_code work_out(fd_engine *engine, const fd_run *run, int32_t id, const void *rows, unsigned wants,
                        const parts *p, fd_error *err) {
    const fd_graph *graph = engine->exec.graph;
    const fd_node *node = &graph->nodes[id];
    fd_watch *watch = &engine->watch;
    fd_row_views views = {.n = 1, .pos0 = run->pos0, .n_row = run->n_tok, .one = view_of(run, node, rows)};
    views.n_block = (views.one.row_stride + FD_SUM_BLOCK - 1) / FD_SUM_BLOCK;
    int64_t n_vocab = graph->hparams.n_vocab;
    size_t scratch = fd_summary_scratch(views.n_block, run->n_tok), top = fd_top_scratch(n_vocab, run->n_tok);
    bool logits = id == graph->n_node - 1;
    FD_TRY(fd_device_reserve(&watch->found, p->bytes, "observed tensors", err));
    FD_TRY(fd_device_reserve(&watch->scratch, logits && top > scratch ? top : scratch, "observed tensors", err));
    char *found = watch->found.data;
    FD_TRY(fd_launch_summary(&engine->queue, &views, false, watch->scratch.data, (fd_fingerprint *)found,
                             wants & FD_WANT_STATS ? (fd_stats *)(found + p->stats) : NULL, err));
    if (p->sink > p->entropy)
        FD_TRY(fd_launch_entropy(&engine->queue, &views, node->shape[0], (float *)(found + p->entropy),
                                 (float *)(found + p->sink), err));
    if (p->bytes > p->top)
        FD_TRY(fd_launch_top_logits(&engine->queue, views.one.data, n_vocab, run->n_tok, watch->scratch.data,
                                    (fd_top_logits *)(found + p->top), err));
    return FD_OK;
}

static unsigned wanted(const fd_engine *engine, int32_t id) {
    const fd_observer *observer = &engine->exec.observer;
    return observer->wants ? observer->wants(observer->user, &engine->exec.graph->nodes[id]) : FD_WANT_DATA;
}

bool fd_watch_wants(const fd_engine *engine, int32_t id) {
    return wanted(engine, id) != 0;
}

fd_code fd_watch_node(fd_engine *engine, const fd_run *run, int32_t id, fd_watch *watch, fd_error *err) {
    const fd_node *node = &engine->exec.graph->nodes[id];
    const char *rows = (const char *)fd_run_tensor(engine, run, id);
    if (node->op == FD_OP_KV_WRITE) rows += (size_t)fd_run_row_bytes(run, node) * (size_t)run->pos0;
    return fd_watch_rows(engine, run, id, rows, watch, err);
}

fd_code fd_watch_rows(fd_engine *engine, const fd_run *run, int32_t id, const void *rows, fd_watch *watch,
                      fd_error *err) {
    const fd_node *node = &engine->exec.graph->nodes[id];
    unsigned wants = wanted(engine, id);
    if (!wants) return FD_OK;

    bool elements = wants & FD_WANT_DATA;
    parts p = parts_of(engine->exec.graph, id, wants, run->n_tok);
    size_t size = elements ? (size_t)fd_run_row_bytes(run, node) * (size_t)run->n_tok : p.bytes;
    if (watch->used + size > watch->pinned.size) {
        FD_TRY(fd_watch_flush(engine, watch, err));
        FD_TRY(fd_pinned_reserve(&watch->pinned, size > WATCH_BYTES ? size : WATCH_BYTES, "observed tensors", err));
    }
    if (!elements) FD_TRY(work_out(engine, run, id, rows, wants, &p, err));
    FD_TRY(fd_cuda_check(cudaMemcpyAsync((char *)watch->pinned.data + watch->used, elements ? rows : watch->found.data,
                                         size, cudaMemcpyDeviceToHost, engine->queue.stream),
                         node->name, err));
    watch->pending[watch->n_pending++] = (fd_pending){.node = id,
                                                      .pos0 = run->pos0,
                                                      .n_pos = run->n_tok,
                                                      .wants = wants,
                                                      .row_stride = fd_node_row_stride(node, run->n_kv),
                                                      .offset = watch->used};
    watch->used += fd_align(size);
    return FD_OK;
}

static fd_observation shown(const fd_engine *engine, const fd_watch *watch, const fd_pending *p) {
    const fd_graph *graph = engine->exec.graph;
    const char *at = (const char *)watch->pinned.data + p->offset;
    fd_observation o = {.graph = graph,
                        .node = &graph->nodes[p->node],
                        .step = engine->exec.step,
                        .pos0 = p->pos0,
                        .n_pos = p->n_pos,
                        .row_stride = p->row_stride,
                        .dtype = FD_F32};
    if (p->wants & FD_WANT_DATA) {
        o.data = at;
        return o;
    }
    parts of = parts_of(graph, p->node, p->wants, p->n_pos);
    o.fingerprints = (const fd_fingerprint *)at;
    if (p->wants & FD_WANT_STATS) o.stats = (const fd_stats *)(at + of.stats);
    if (of.sink > of.entropy) o.entropy = (const float *)(at + of.entropy), o.sink = (const float *)(at + of.sink);
    if (of.bytes > of.top) o.top = (const fd_top_logits *)(at + of.top);
    return o;
}

fd_code fd_watch_flush(fd_engine *engine, fd_watch *watch, fd_error *err) {
    const fd_observer *observer = &engine->exec.observer;
    int32_t n = watch->n_pending;
    watch->n_pending = 0;
    watch->used = 0;
    if (n == 0) return FD_OK;
    FD_TRY(fd_cuda_check(cudaStreamSynchronize(engine->queue.stream), "observed tensors", err));
    for (int32_t i = 0; i < n; i++) {
        fd_observation seen = shown(engine, watch, &watch->pending[i]);
        FD_TRY(observer->observe(observer->user, &seen, err));
    }
    return FD_OK;
}

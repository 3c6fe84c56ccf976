#include "engine/observe.h"

#include <stdlib.h>

#include "engine/pass.h"
#include "kernels/elementwise/rows_f16.h"

/* Tensors gather here before the host looks; one that is larger gets the room it needs. */
enum { PINNED_BYTES = 64 << 20 };

/* Whether the node is a part that is gathered as it is shown, as all are in fast numerics; in others GATHERs of the pass
 * are shown. */
static bool is_shown_part(const fd_engine *e, int32_t id) {
    return e->fast && e->split && e->split->full_id[id] < 0;
}

/* The node as the observer knows it; NULL: it is not shown. */
static const fd_node *shown_node(const fd_engine *e, int32_t id) {
    if (!e->split) return &e->exec.graph->nodes[id];
    if (e->fast && e->exec.graph->nodes[id].op == FD_OP_GATHER) return NULL;
    int32_t full = e->split->full_id[is_shown_part(e, id) ? id + 1 : id];
    return full < 0 ? NULL : &e->split->full->nodes[full];
}

static const fd_graph *shown_graph(const fd_engine *e) {
    return e->split ? e->split->full : e->exec.graph;
}

static bool is_logits(const fd_engine *e, const fd_node *node) {
    return node->id == shown_graph(e)->n_node - 1;
}

unsigned fd_observe_wants(const fd_engine *engine, int32_t id) {
    const fd_observer *observer = &engine->exec.observer;
    const fd_node *node = shown_node(engine, id);
    if (!node) return 0;
    return observer->wants ? observer->wants(observer->user, node) : FD_WANT_DATA;
}

fd_code fd_reduce_on_device(const fd_reduction *in, const fd_reduced *parts, fd_error *err) {
    FD_TRY(fd_launch_summary(in->ctx, &in->tensors, in->copies, in->scratch,
                             (fd_fingerprint *)(void *)(in->results + parts->prints),
                             parts->has_stats ? (fd_stats *)(void *)(in->results + parts->stats) : NULL, err));
    if (parts->has_health)
        FD_TRY(fd_launch_entropy(in->ctx, &in->weights, in->n_head, (float *)(void *)(in->results + parts->entropy),
                                 (float *)(void *)(in->results + parts->sink), err));
    if (!parts->has_top) return FD_OK;
    return fd_launch_top_logits(in->ctx, in->logits, in->n_vocab, in->tensors.n_row, in->top_scratch,
                                (fd_top_logits *)(void *)(in->results + parts->top), err);
}

fd_code fd_observe_deliver(const fd_exec *exec, const fd_observation *observations, int32_t n, fd_error *err) {
    for (int32_t i = 0; i < n; i++) FD_TRY(exec->observer.observe(exec->observer.user, &observations[i], err));
    return FD_OK;
}

/* ---- node by node ---- */

/* The parts of what is wanted of n rows of the node, one after the other. Returns their bytes. */
static size_t lay_out(const fd_node *node, bool is_last, unsigned wants, int32_t n, fd_reduced *parts) {
    size_t rows = (size_t)n;
    *parts = (fd_reduced){.has_stats = wants & FD_WANT_STATS,
                          .has_health = (wants & FD_WANT_HEALTH) && node->op == FD_OP_ATTN_SOFTMAX,
                          .has_top = (wants & FD_WANT_HEALTH) && is_last};
    size_t heads = parts->has_health ? fd_align(rows * (size_t)node->shape[0] * sizeof(float)) : 0;
    parts->stats = fd_align(rows * sizeof(fd_fingerprint));
    parts->entropy = parts->stats + (parts->has_stats ? fd_align(rows * sizeof(fd_stats)) : 0);
    parts->sink = parts->entropy + heads;
    parts->top = parts->sink + heads;
    return parts->top + (parts->has_top ? fd_align(rows * sizeof(fd_top_logits)) : 0);
}

static fd_row_views views_of(const fd_pass *pass, const fd_node *node, const void *rows) {
    fd_row_view view = {.data = rows, .row_stride = fd_node_row_stride(node, pass->n_kv)};
    if (node->over_kv) {
        view.n_run = node->shape[0];
        view.run_stride = pass->n_kv;
    } else {
        view.n = (int32_t)view.row_stride;
    }
    return (fd_row_views){.n = 1,
                          .pos0 = pass->pos0,
                          .n_row = pass->n_tok,
                          .n_block = (view.row_stride + FD_SUM_BLOCK - 1) / FD_SUM_BLOCK,
                          .one = view};
}

static size_t reduce_scratch(const fd_pass *pass, const fd_node *node) {
    size_t scratch = fd_summary_scratch(views_of(pass, node, NULL).n_block, pass->n_tok);
    size_t top = fd_top_scratch(pass->plan->graph->hparams.n_vocab, pass->n_tok);
    return is_logits(pass->engine, node) && top > scratch ? top : scratch;
}

/* One stream: sync.results serves all nodes in turn. */
static fd_code reduce(const fd_pass *pass, const fd_node *node, const void *rows, const fd_reduced *parts, size_t bytes,
                      fd_error *err) {
    fd_sync_observe *sync = &pass->engine->sync;
    int64_t n_vocab = pass->plan->graph->hparams.n_vocab;
    fd_row_views views = views_of(pass, node, rows);
    FD_TRY(fd_device_reserve(&sync->results, bytes, "observed tensors", err));
    FD_TRY(fd_device_reserve(&sync->scratch, reduce_scratch(pass, node), "observed tensors", err));
    fd_reduction in = {.ctx = &pass->engine->device.ctx,
                       .tensors = views,
                       .weights = views,
                       .n_head = node->shape[0],
                       .logits = rows,
                       .n_vocab = n_vocab,
                       .scratch = sync->scratch.data,
                       .top_scratch = sync->scratch.data,
                       .results = sync->results.data};
    return fd_reduce_on_device(&in, parts, err);
}

static fd_observation to_observation(const fd_pass *pass, const fd_node *node, const char *at,
                                     const fd_reduced *parts) {
    fd_observation o = {.graph = shown_graph(pass->engine),
                        .node = node,
                        .step = pass->engine->exec.step,
                        .pos0 = pass->pos0,
                        .n_pos = pass->n_tok,
                        .row_stride = fd_node_row_stride(node, pass->n_kv),
                        .dtype = FD_F32};
    if (!parts) {
        o.data = at;
        return o;
    }
    o.fingerprints = (const fd_fingerprint *)(const void *)at;
    if (parts->has_stats) o.stats = (const fd_stats *)(const void *)(at + parts->stats);
    if (parts->has_health) {
        o.entropy = (const float *)(const void *)(at + parts->entropy);
        o.sink = (const float *)(const void *)(at + parts->sink);
    }
    if (parts->has_top) o.top = (const fd_top_logits *)(const void *)(at + parts->top);
    return o;
}

/* Pinned memory that a node takes. */
static size_t shown_bytes(const fd_pass *pass, const fd_node *node, unsigned wants, fd_reduced *parts) {
    size_t size = lay_out(node, is_logits(pass->engine, node), wants, pass->n_tok, parts);
    return wants & FD_WANT_DATA ? (size_t)fd_pass_row_bytes(pass, node) * (size_t)pass->n_tok : size;
}

fd_code fd_observe_reserve(const fd_pass *pass, fd_error *err) {
    fd_sync_observe *sync = &pass->engine->sync;
    size_t pinned = 0, results = 0, scratch = 0;
    if (pass->engine->rank > 0) return FD_OK;
    for (int32_t i = 0; i < pass->plan->graph->n_node; i++) {
        const fd_node *node = shown_node(pass->engine, i);
        unsigned wants = fd_observe_wants(pass->engine, i);
        fd_reduced parts;
        if (!wants) continue;
        size_t size = shown_bytes(pass, node, wants, &parts);
        size_t sums = reduce_scratch(pass, node);
        if (size > pinned) pinned = size;
        if (!(wants & FD_WANT_DATA) && size > results) results = size;
        if (sums > scratch) scratch = sums;
    }
    FD_TRY(fd_device_reserve(&sync->results, results, "observed tensors", err));
    FD_TRY(fd_device_reserve(&sync->scratch, scratch, "observed tensors", err));
    if (pinned > 0 && pinned < PINNED_BYTES) pinned = PINNED_BYTES;
    return fd_pinned_reserve(&sync->pinned, pinned, "observed tensors", err);
}

fd_code fd_observe_rows(fd_pass *pass, int32_t id, const void *rows, fd_error *err) {
    const fd_node *node = shown_node(pass->engine, id);
    fd_sync_observe *sync = &pass->engine->sync;
    unsigned wants = fd_observe_wants(pass->engine, id);
    if (!wants) return FD_OK;
    if (is_shown_part(pass->engine, id)) {
        float *whole;
        fd_gather in = fd_ranks_gather_shown(pass, id + 1, rows, pass->n_tok, &whole);
        FD_TRY(fd_ranks_launch_gather(pass, id + 1, &in, err));
        rows = whole;
    }
    if (pass->engine->rank > 0) return FD_OK; /* the first one tells */
    bool elements = wants & FD_WANT_DATA;
    fd_reduced parts;
    size_t size = shown_bytes(pass, node, wants, &parts);
    if (sync->used + size > sync->pinned.size) {
        FD_TRY(fd_observe_flush(pass->engine, err));
        FD_TRY(fd_pinned_reserve(&sync->pinned, size > PINNED_BYTES ? size : PINNED_BYTES, "observed tensors", err));
    }
    if (!elements) FD_TRY(reduce(pass, node, rows, &parts, size, err));
    char *to = (char *)sync->pinned.data + sync->used;
    FD_TRY(fd_cuda_check(cudaMemcpyAsync(to, elements ? rows : sync->results.data, size, cudaMemcpyDeviceToHost,
                                         pass->engine->device.ctx.stream),
                         node->name, err));
    sync->pending[sync->n_pending++] = to_observation(pass, node, to, elements ? NULL : &parts);
    sync->used += fd_align(size);
    return FD_OK;
}

float *fd_observed_tensor(const fd_pass *pass, int32_t id) {
    float *rows = fd_pass_tensor(pass, id);
    return !rows && pass->observe && fd_observe_wants(pass->engine, id) ? pass->engine->fast->inner.data : rows;
}

fd_code fd_observe_node(fd_pass *pass, int32_t id, fd_error *err) {
    const fd_node *node = fd_pass_node(pass, id);
    fd_engine *e = pass->engine;
    const void *rows = fd_observed_tensor(pass, id);
    if (node->op != FD_OP_KV_WRITE) return fd_observe_rows(pass, id, rows, err);
    const int64_t width = fd_node_row_stride(node, 0), n = width * pass->n_tok;
    if (!fd_cache_is_half(node, e->fast))
        return fd_observe_rows(pass, id, (const float *)rows + width * pass->pos0, err);
    if (!fd_observe_wants(e, id)) return FD_OK;
    FD_TRY(fd_device_reserve(&e->sync.cached, (size_t)n * sizeof(float), "observed tensors", err));
    FD_TRY(fd_launch_from_f16(&pass->ctx, (const uint16_t *)rows + width * pass->pos0, n, e->sync.cached.data, err));
    return fd_observe_rows(pass, id, e->sync.cached.data, err);
}

fd_code fd_observe_flush(fd_engine *e, fd_error *err) {
    int32_t n = e->sync.n_pending;
    e->sync.n_pending = 0;
    e->sync.used = 0;
    if (n == 0) return FD_OK;
    FD_TRY(fd_engine_wait(e, NULL, "observed tensors", err));
    return fd_observe_deliver(&e->exec, e->sync.pending, n, err);
}

void fd_observe_release(fd_engine *e) {
    fd_pinned_free(&e->sync.pinned);
    fd_device_free(&e->sync.results);
    fd_device_free(&e->sync.scratch);
    fd_device_free(&e->sync.cached);
    free(e->sync.pending);
}

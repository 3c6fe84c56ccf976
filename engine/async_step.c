/* An observed decode step: launched, reduced and copied during the next one, shown. */
#include "engine/async_observe.h"
#include "engine/internal.h"

/* ---- what is made of it, on the stream of its own ---- */

static fd_code reduce(fd_engine *e, fd_async_set *set, unsigned wants, int32_t pos, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    const fd_async_observe *a = &e->async;
    fd_launch_context ctx = e->device.ctx;
    ctx.stream = a->stream;
    const fd_row_view *table = set->views.data;
    fd_reduced parts = a->layout.parts;
    parts.has_stats = wants & FD_WANT_STATS;
    parts.has_health = (wants & FD_WANT_HEALTH) && a->layout.n_weights > 0;
    parts.has_top = wants & FD_WANT_HEALTH;
    fd_reduction in = {
        .ctx = &ctx,
        .tensors = {.table = table, .n = graph->n_node, .pos0 = pos, .n_row = 1, .n_block = a->layout.n_block},
        .weights = {.table = table + graph->n_node, .n = a->layout.n_weights, .pos0 = pos, .n_row = 1},
        .n_head = a->layout.n_head,
        .logits = set->tensor[graph->n_node - 1],
        .n_vocab = graph->hparams.n_vocab,
        .copies = wants & FD_WANT_DATA, /* wanted elements of caches and of rows along the positions are gathered */
        .scratch = (char *)a->scratch.data + fd_align(fd_top_scratch(graph->hparams.n_vocab, 1)),
        .top_scratch = a->scratch.data,
        .results = set->results.data};
    FD_TRY(fd_reduce_on_device(&in, &parts, err));
    size_t bytes = parts.has_stats ? a->layout.results_bytes : parts.stats;
    return fd_cuda_check(cudaMemcpyAsync(set->results_host.data, in.results, bytes, cudaMemcpyDeviceToHost, a->stream),
                         "observed tensors", err);
}

static fd_code copy_others(fd_engine *e, const fd_async_set *set, size_t begin, size_t end, fd_error *err) {
    const char *others = (const char *)set->tensors.data + 2 * e->async.layout.over_bytes;
    if (begin == end) return FD_OK;
    return fd_cuda_check(cudaMemcpyAsync((char *)set->tensors_host.data + begin, others + begin, end - begin,
                                         cudaMemcpyDeviceToHost, e->async.stream),
                         "observed tensors", err);
}

/* Bytes of a node along the positions, without gaps. */
static size_t over_row_bytes(const fd_async_layout *l, int32_t pos) {
    return sizeof(float) * (size_t)l->n_head * (size_t)(pos + 1);
}

/* Elements: wanted neighbours in one copy, and all that runs along the positions in one. */
static fd_code copy_to_host(fd_engine *e, fd_async_set *set, int32_t pos, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    const fd_async_layout *l = &e->async.layout;
    size_t row = over_row_bytes(l, pos), pitch = l->n_over > 0 ? l->over_bytes / (size_t)l->n_over : 0;
    /* Grown by half again, and never while a copy into it is under way: the set has been shown. */
    if (l->other_bytes + (size_t)l->n_over * row > set->tensors_host.size)
        FD_TRY(fd_pinned_reserve(&set->tensors_host, l->other_bytes + (size_t)l->n_over * (row + row / 2),
                                 "observed tensors", err));
    bool over = false;
    size_t begin = 0, end = 0; /* of the wanted neighbours so far */
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        bool wanted = e->async.wants[i] & FD_WANT_DATA;
        over = over || (wanted && node->over_kv);
        if (!wanted || node->over_kv) continue;
        if (l->at[i] != end) {
            FD_TRY(copy_others(e, set, begin, end, err));
            begin = l->at[i];
        }
        end = l->at[i] + fd_align(sizeof(float) * (size_t)fd_node_row_stride(node, 0));
    }
    FD_TRY(copy_others(e, set, begin, end, err));
    if (!over) return FD_OK;
    return fd_cuda_check(cudaMemcpy2DAsync((char *)set->tensors_host.data + l->other_bytes, row,
                                           (const char *)set->tensors.data + l->over_bytes, pitch, row,
                                           (size_t)l->n_over, cudaMemcpyDeviceToHost, e->async.stream),
                         "observed tensors", err);
}

static fd_observation to_observation(const fd_engine *e, const fd_async_set *set, int32_t id, int32_t pos) {
    const fd_graph *graph = e->exec.graph;
    const fd_async_layout *l = &e->async.layout;
    const fd_node *node = &graph->nodes[id];
    const char *results = set->results_host.data, *host = set->tensors_host.data;
    unsigned wants = e->async.wants[id];
    fd_observation o = {.graph = graph,
                        .node = node,
                        .step = e->exec.step,
                        .pos0 = pos,
                        .n_pos = 1,
                        .row_stride = fd_node_row_stride(node, pos + 1),
                        .dtype = FD_F32};
    if (wants & FD_WANT_DATA && node->over_kv)
        o.data = host + l->other_bytes + l->at[id] / (l->over_bytes / (size_t)l->n_over) * over_row_bytes(l, pos);
    else if (wants & FD_WANT_DATA)
        o.data = host + l->at[id];
    if (wants & FD_WANT_FINGERPRINT)
        o.fingerprints = (const fd_fingerprint *)(const void *)(results + l->parts.prints) + id;
    if (wants & FD_WANT_STATS) o.stats = (const fd_stats *)(const void *)(results + l->parts.stats) + id;
    if ((wants & FD_WANT_HEALTH) && node->op == FD_OP_ATTN_SOFTMAX) {
        size_t at = (size_t)l->order[id] * (size_t)l->n_head;
        o.entropy = (const float *)(const void *)(results + l->parts.entropy) + at;
        o.sink = (const float *)(const void *)(results + l->parts.sink) + at;
    }
    if ((wants & FD_WANT_HEALTH) && id == graph->n_node - 1)
        o.top = (const fd_top_logits *)(const void *)(results + l->parts.top);
    return o;
}

static fd_code observe(fd_engine *e, fd_async_set *set, int32_t pos, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    unsigned all = 0;
    for (int32_t i = 0; i < graph->n_node; i++) all |= e->async.wants[i] = fd_observe_wants(e, i);
    set->observer = e->exec.n_observer;
    set->n_observation = 0;
    FD_TRY(fd_cuda_check(cudaStreamWaitEvent(e->async.stream, set->computed, 0), "event", err));
    if (all) FD_TRY(reduce(e, set, all, pos, err));
    if (all & FD_WANT_DATA) FD_TRY(copy_to_host(e, set, pos, err));
    FD_TRY(fd_cuda_check(cudaEventRecord(set->copied, e->async.stream), "event", err));
    for (int32_t i = 0; i < graph->n_node; i++)
        if (e->async.wants[i]) set->observations[set->n_observation++] = to_observation(e, set, i, pos);
    set->is_pending = true;
    return FD_OK;
}

/* ---- showing it ---- */

static fd_code show(fd_engine *e, fd_async_set *set, fd_error *err) {
    const fd_observer *observer = &e->exec.observer;
    if (!set->is_pending) return FD_OK;
    set->is_pending = false;
    FD_TRY(fd_cuda_check(cudaEventSynchronize(set->copied), "observed step", err));
    if (set->observer != e->exec.n_observer) return FD_OK;
    FD_TRY(fd_observe_deliver(&e->exec, set->observations, set->n_observation, err));
    return observer->end ? observer->end(observer->user, err) : FD_OK;
}

fd_code fd_async_flush(fd_engine *e, fd_error *err) {
    if (!e->async.ready) return FD_OK;
    FD_TRY(show(e, &e->async.sets[e->async.next], err));
    return show(e, &e->async.sets[1 - e->async.next], err);
}

void fd_async_forget(fd_engine *e) {
    if (e->async.stream) (void)cudaStreamSynchronize(e->async.stream);
    for (int i = 0; i < 2; i++) e->async.sets[i].is_pending = false;
}

fd_code fd_async_forward(fd_engine *e, const fd_batch *batch, fd_error *err) {
    const fd_observer *observer = &e->exec.observer;
    fd_async_set *set = &e->async.sets[e->async.next];
    FD_TRY(fd_engine_step_kept(e, set->tensor, set->graphs, batch->tokens[0], batch->pos0, err));
    FD_TRY(fd_cuda_check(cudaEventRecord(set->computed, e->device.ctx.stream), "event", err));
    FD_TRY(fd_async_flush(e, err)); /* the step before, while this one runs */
    if (observer->begin) FD_TRY(observer->begin(observer->user, batch, err));
    FD_TRY(observe(e, set, batch->pos0, err));
    e->async.next = 1 - e->async.next;
    FD_TRY(batch->logits ? fd_copy_logits(e, e->logits, 1, 1, batch->logits, err)
                         : fd_cuda_check(cudaStreamSynchronize(e->device.ctx.stream), "decode step", err));
    return observer->begin ? FD_OK : fd_async_flush(e, err);
}

#include "engine/async_observe.h"

#include <stdlib.h>

#include "engine/internal.h"

static size_t row_bytes(const fd_node *node) {
    return sizeof(float) * (size_t)fd_node_row_stride(node, 0);
}

/* What runs along the positions has the same number of rows everywhere, or the layout is refused. Room for the arrays
 * comes from the caller. */
static bool lay_out(const fd_graph *graph, int32_t n_ctx, fd_async_layout *l) {
    size_t n_node = (size_t)graph->n_node, each = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        int64_t elements = fd_node_row_stride(node, n_ctx);
        l->n_block += (elements + FD_SUM_BLOCK - 1) / FD_SUM_BLOCK;
        if (!node->over_kv) {
            l->at[i] = l->other_bytes;
            l->other_bytes += fd_align(row_bytes(node));
            continue;
        }
        if (l->n_head != 0 && l->n_head != node->shape[0]) return false;
        l->n_head = node->shape[0];
        each = fd_align(sizeof(float) * (size_t)l->n_head * (size_t)n_ctx);
        l->at[i] = (size_t)l->n_over * each;
        l->n_over++;
        if (node->op == FD_OP_ATTN_SOFTMAX) l->order[i] = l->n_weights++;
    }
    l->over_bytes = (size_t)l->n_over * each;
    size_t heads = fd_align(sizeof(float) * (size_t)l->n_weights * (size_t)l->n_head);
    l->parts.entropy = fd_align(n_node * sizeof(fd_fingerprint));
    l->parts.sink = l->parts.entropy + heads;
    l->parts.top = l->parts.sink + heads;
    l->parts.stats = l->parts.top + fd_align(sizeof(fd_top_logits)); /* last: they are not always copied */
    l->results_bytes = l->parts.stats + fd_align(n_node * sizeof(fd_stats));
    return true;
}

/* Device memory of one set, and of what both share. */
static size_t tensors_bytes(const fd_async_layout *l) {
    return 2 * l->over_bytes + l->other_bytes;
}
static size_t views_bytes(const fd_graph *graph, const fd_async_layout *l) {
    return sizeof(fd_row_view) * ((size_t)graph->n_node + (size_t)l->n_weights);
}
static size_t shared_bytes(const fd_graph *graph, const fd_async_layout *l) {
    return fd_align(fd_top_scratch(graph->hparams.n_vocab, 1)) + fd_summary_scratch(l->n_block, 1);
}

uint64_t fd_async_bytes(const fd_graph *graph, int32_t n_ctx) {
    fd_async_layout l = {.at = calloc((size_t)graph->n_node, sizeof *l.at),
                         .order = calloc((size_t)graph->n_node, sizeof *l.order)};
    uint64_t bytes = 0;
    if (l.at && l.order && lay_out(graph, n_ctx, &l))
        bytes = fd_align(shared_bytes(graph, &l)) +
                2 * (fd_align(tensors_bytes(&l)) + fd_align(views_bytes(graph, &l)) + fd_align(l.results_bytes));
    free(l.at);
    free(l.order);
    return bytes;
}

static fd_row_view view_of(const fd_engine *e, const fd_async_set *set, const fd_node *node) {
    const fd_async_layout *l = &e->async.layout;
    fd_row_view view = {.data = set->tensor[node->id], .row_stride = fd_node_row_stride(node, e->exec.n_ctx)};
    if (node->op == FD_OP_KV_WRITE) {
        view.data = e->state.cache[node->id];
        view.by_position = true;
        view.halves = fd_cache_is_half(node, false);
        view.copy = set->tensor[node->id];
    }
    if (node->over_kv) {
        view.n_run = node->shape[0];
        view.run_stride = e->exec.n_ctx;
        view.copy = (float *)((char *)set->tensor[node->id] + l->over_bytes);
    } else {
        view.n = (int32_t)view.row_stride;
    }
    return view;
}

static fd_code upload_views(fd_engine *e, fd_async_set *set, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    size_t bytes = views_bytes(graph, &e->async.layout);
    fd_row_view *views = calloc(1, bytes);
    if (!views) return fd_fail(err, FD_ERR_MEMORY, "observed steps: out of memory");
    int64_t first = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        views[i] = view_of(e, set, node);
        views[i].first = first;
        first += (fd_node_row_stride(node, e->exec.n_ctx) + FD_SUM_BLOCK - 1) / FD_SUM_BLOCK;
        if (node->op == FD_OP_ATTN_SOFTMAX) views[graph->n_node + e->async.layout.order[i]] = views[i];
    }
    fd_code code = fd_device_alloc(&set->views, bytes, "observed steps", err);
    if (code == FD_OK)
        code = fd_cuda_check(cudaMemcpy(set->views.data, views, bytes, cudaMemcpyHostToDevice), "observed steps", err);
    free(views);
    return code;
}

static fd_code make_set(fd_engine *e, fd_async_set *set, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    const fd_async_layout *l = &e->async.layout;
    set->tensor = calloc((size_t)graph->n_node, sizeof *set->tensor);
    set->observations = calloc((size_t)graph->n_node, sizeof *set->observations);
    if (!set->tensor || !set->observations) return fd_fail(err, FD_ERR_MEMORY, "observed steps: out of memory");
    FD_TRY(fd_device_alloc(&set->tensors, tensors_bytes(l), "observed steps", err));
    for (int32_t i = 0; i < graph->n_node; i++) {
        size_t from = graph->nodes[i].over_kv ? 0 : 2 * l->over_bytes;
        set->tensor[i] = (float *)((char *)set->tensors.data + from + l->at[i]);
    }
    FD_TRY(fd_device_alloc(&set->results, l->results_bytes, "observed steps", err));
    FD_TRY(fd_pinned_reserve(&set->results_host, l->results_bytes, "observed steps", err));
    FD_TRY(fd_cuda_check(cudaEventCreateWithFlags(&set->computed, cudaEventDisableTiming), "event", err));
    FD_TRY(fd_cuda_check(cudaEventCreateWithFlags(&set->copied, cudaEventDisableTiming), "event", err));
    return upload_views(e, set, err);
}

static fd_code make(fd_engine *e, fd_error *err) {
    fd_async_observe *k = &e->async;
    size_t n_node = (size_t)e->exec.graph->n_node;
    k->layout.at = calloc(n_node, sizeof *k->layout.at);
    k->layout.order = calloc(n_node, sizeof *k->layout.order);
    k->wants = calloc(n_node, sizeof *k->wants);
    if (!k->layout.at || !k->layout.order || !k->wants)
        return fd_fail(err, FD_ERR_MEMORY, "observed steps: out of memory");
    if (!lay_out(e->exec.graph, e->exec.n_ctx, &k->layout))
        return fd_fail(err, FD_ERR_UNSUPPORTED, "observed steps: layers with different numbers of heads");
    FD_TRY(fd_cuda_check(cudaStreamCreateWithFlags(&k->stream, cudaStreamNonBlocking), "stream", err));
    FD_TRY(fd_device_alloc(&k->scratch, shared_bytes(e->exec.graph, &k->layout), "observed steps", err));
    for (int i = 0; i < 2; i++) FD_TRY(make_set(e, &k->sets[i], err));
    return FD_OK;
}

fd_code fd_async_prepare(fd_engine *e, bool *possible, fd_error *err) {
    fd_async_observe *k = &e->async;
    fd_error why = {0};
    if (!k->ready && !k->refused) {
        fd_code code = make(e, &why);
        k->ready = code == FD_OK;
        k->refused = code == FD_ERR_MEMORY || code == FD_ERR_UNSUPPORTED;
        if (!k->ready) fd_async_release(e);
        if (!k->ready && !k->refused) {
            *err = why;
            return code;
        }
    }
    *possible = k->ready;
    return FD_OK;
}

static void release_set(fd_async_set *set) {
    for (int i = 0; i < 2; i++) fd_graph_forget(&set->graphs[i]);
    if (set->computed) (void)cudaEventDestroy(set->computed);
    if (set->copied) (void)cudaEventDestroy(set->copied);
    fd_device_free(&set->tensors);
    fd_device_free(&set->views);
    fd_device_free(&set->results);
    fd_pinned_free(&set->results_host);
    fd_pinned_free(&set->tensors_host);
    free(set->tensor);
    free(set->observations);
}

void fd_async_release(fd_engine *e) {
    fd_async_observe *k = &e->async;
    bool refused = k->refused;
    if (k->stream) (void)cudaStreamSynchronize(k->stream);
    for (int i = 0; i < 2; i++) release_set(&k->sets[i]);
    fd_device_free(&k->scratch);
    if (k->stream) (void)cudaStreamDestroy(k->stream);
    free(k->layout.at);
    free(k->layout.order);
    free(k->wants);
    *k = (fd_async_observe){.refused = refused};
}

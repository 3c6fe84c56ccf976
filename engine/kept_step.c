/* An observed decode step: launched, worked out beside the next one, shown. */
#include <string.h>

#include "engine/internal.h"

/* ---- the step ---- */

static fd_code enqueue(fd_engine *e, const fd_kept_set *set, bool near, fd_error *err) {
    fd_launch_context queue = e->queue;
    queue.overlap = e->overlap;
    fd_run run = {.plan = &e->step,
                  .tensors = set->tensor,
                  .queue = &queue,
                  .n_tok = 1,
                  .n_kv = e->exec.n_ctx,
                  .inputs = e->inputs,
                  .tail = FD_ROWS_ALL,
                  .near = near};
    FD_TRY(fd_cuda_check(cudaMemcpyAsync(e->inputs, e->inputs_host.data, sizeof(int32_t) * (FD_INPUT_TOKENS + 1),
                                         cudaMemcpyHostToDevice, e->queue.stream),
                         "token upload", err));
    return fd_run_plan(e, &run, NULL, err);
}

static fd_code capture(fd_engine *e, fd_kept_set *set, bool near, fd_error *err) {
    FD_TRY(fd_capture_begin(e, err));
    return fd_capture_end(e, enqueue(e, set, near, err), &set->graphs[near].exec, err);
}

static fd_code compute(fd_engine *e, fd_kept_set *set, int32_t token, int32_t pos, fd_error *err) {
    bool near = pos < FD_ATTENTION_SHORT_CONTEXT;
    fd_step_graph *graph = &set->graphs[near];
    int32_t *inputs = e->inputs_host.data;
    inputs[FD_INPUT_FIRST] = inputs[FD_INPUT_LAST] = pos;
    inputs[FD_INPUT_SEQUENCE] = e->exec.sequence;
    inputs[FD_INPUT_TOKENS] = token;
    if (graph->warm && !e->no_graph && !graph->exec) FD_TRY(capture(e, set, near, err));
    if (graph->exec) {
        FD_TRY(fd_cuda_check(cudaGraphLaunch(graph->exec, e->queue.stream), "graph launch", err));
    } else {
        FD_TRY(enqueue(e, set, near, err));
        graph->warm = true;
    }
    return fd_cuda_check(cudaEventRecord(set->computed, e->queue.stream), "event", err);
}

/* ---- what is made of it, on the stream beside ---- */

static fd_code work_out(fd_engine *e, fd_kept_set *set, unsigned wants, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    const fd_kept *k = &e->kept;
    const fd_kept_layout *l = &k->layout;
    fd_launch_context queue = e->queue;
    queue.stream = k->stream;
    char *found = set->found.data;
    const fd_row_view *table = set->views.data;
    fd_row_views views = {.table = table, .n = graph->n_node, .pos0 = set->pos, .n_row = 1, .n_block = l->n_block};
    fd_row_views weights = {.table = table + graph->n_node, .n = l->n_weights, .pos0 = set->pos, .n_row = 1};
    size_t top_bytes = fd_align(fd_top_scratch(graph->hparams.n_vocab, 1));
    /* Wanted elements of caches and of rows along the positions are gathered by the same kernel. */
    FD_TRY(fd_launch_summary(&queue, &views, wants & FD_WANT_DATA, (char *)k->scratch.data + top_bytes,
                             (fd_fingerprint *)(found + l->prints),
                             wants & FD_WANT_STATS ? (fd_stats *)(found + l->stats) : NULL, err));
    if (wants & FD_WANT_HEALTH) {
        if (l->n_weights > 0)
            FD_TRY(fd_launch_entropy(&queue, &weights, l->n_head, (float *)(found + l->entropy),
                                     (float *)(found + l->sink), err));
        FD_TRY(fd_launch_top_logits(&queue, set->tensor[graph->n_node - 1], graph->hparams.n_vocab, 1, k->scratch.data,
                                    (fd_top_logits *)(found + l->top), err));
    }
    size_t bytes = wants & FD_WANT_STATS ? l->found_bytes : l->stats;
    return fd_cuda_check(cudaMemcpyAsync(set->found_host.data, found, bytes, cudaMemcpyDeviceToHost, k->stream),
                         "what was worked out", err);
}

static fd_code bring_others(fd_engine *e, const fd_kept_set *set, size_t begin, size_t end, fd_error *err) {
    const char *others = (const char *)set->tensors.data + 2 * e->kept.layout.over_bytes;
    if (begin == end) return FD_OK;
    return fd_cuda_check(cudaMemcpyAsync((char *)set->tensors_host.data + begin, others + begin, end - begin,
                                         cudaMemcpyDeviceToHost, e->kept.stream),
                         "observed tensors", err);
}

/* Elements: wanted neighbours in one copy, and all that runs along the positions in one. */
static fd_code bring(fd_engine *e, fd_kept_set *set, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    const fd_kept *k = &e->kept;
    const fd_kept_layout *l = &k->layout;
    size_t row = sizeof(float) * (size_t)l->n_head * (size_t)(set->pos + 1);
    size_t pitch = l->n_over > 0 ? l->over_bytes / (size_t)l->n_over : 0;
    /* Grown by half again, and never while a copy into it is under way: the set has been shown. */
    size_t need = l->other_bytes + (size_t)l->n_over * row;
    if (need > set->tensors_host.size)
        FD_TRY(fd_pinned_reserve(&set->tensors_host, l->other_bytes + (size_t)l->n_over * (row + row / 2), "observed tensors",
                                 err));
    bool over = false;
    size_t begin = 0, end = 0; /* of the wanted neighbours so far */
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        bool wanted = set->wants[i] & FD_WANT_DATA;
        over = over || (wanted && node->over_kv);
        if (!wanted || node->over_kv) continue;
        if (l->at[i] != end) {
            FD_TRY(bring_others(e, set, begin, end, err));
            begin = l->at[i];
        }
        end = l->at[i] + fd_align(sizeof(float) * (size_t)fd_node_row_stride(node, 0));
    }
    FD_TRY(bring_others(e, set, begin, end, err));
    if (!over) return FD_OK;
    return fd_cuda_check(cudaMemcpy2DAsync((char *)set->tensors_host.data + l->other_bytes, row,
                                           (const char *)set->tensors.data + l->over_bytes, pitch, row, (size_t)l->n_over,
                                           cudaMemcpyDeviceToHost, k->stream),
                         "observed tensors", err);
}

static fd_code observe_beside(fd_engine *e, fd_kept_set *set, const fd_batch *batch, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    const fd_observer *observer = &e->exec.observer;
    unsigned all = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        set->wants[i] = observer->wants ? observer->wants(observer->user, &graph->nodes[i]) : FD_WANT_DATA;
        all |= set->wants[i];
    }
    set->step = e->exec.step;
    set->pos = batch->pos0;
    set->observer = e->exec.n_observer;
    FD_TRY(fd_cuda_check(cudaStreamWaitEvent(e->kept.stream, set->computed, 0), "event", err));
    if (all) FD_TRY(work_out(e, set, all, err));
    if (all & FD_WANT_DATA) FD_TRY(bring(e, set, err));
    FD_TRY(fd_cuda_check(cudaEventRecord(set->brought, e->kept.stream), "event", err));
    set->pending = true;
    return FD_OK;
}

/* ---- showing it ---- */

static fd_observation shown(const fd_engine *e, const fd_kept_set *set, int32_t id) {
    const fd_graph *graph = e->exec.graph;
    const fd_kept_layout *l = &e->kept.layout;
    const fd_node *node = &graph->nodes[id];
    const char *found = set->found_host.data, *host = set->tensors_host.data;
    unsigned wants = set->wants[id];
    fd_observation o = {.graph = graph, .node = node, .step = set->step, .pos0 = set->pos, .n_pos = 1, .dtype = FD_F32};
    o.row_stride = fd_node_row_stride(node, set->pos + 1);
    if (wants & FD_WANT_DATA) {
        size_t row = sizeof(float) * (size_t)l->n_head * (size_t)(set->pos + 1);
        o.data = node->over_kv ? host + l->other_bytes + l->at[id] / (l->over_bytes / (size_t)l->n_over) * row
                               : host + l->at[id];
    }
    if (wants & FD_WANT_FINGERPRINT) o.fingerprints = (const fd_fingerprint *)(found + l->prints) + id;
    if (wants & FD_WANT_STATS) o.stats = (const fd_stats *)(found + l->stats) + id;
    if ((wants & FD_WANT_HEALTH) && node->op == FD_OP_ATTN_SOFTMAX) {
        size_t at = (size_t)l->order[id] * (size_t)l->n_head;
        o.entropy = (const float *)(found + l->entropy) + at;
        o.sink = (const float *)(found + l->sink) + at;
    }
    if ((wants & FD_WANT_HEALTH) && id == graph->n_node - 1) o.top = (const fd_top_logits *)(found + l->top);
    return o;
}

static fd_code show(fd_engine *e, fd_kept_set *set, fd_error *err) {
    const fd_observer *observer = &e->exec.observer;
    if (!set->pending) return FD_OK;
    set->pending = false;
    FD_TRY(fd_cuda_check(cudaEventSynchronize(set->brought), "observed step", err));
    if (set->observer != e->exec.n_observer) return FD_OK;
    for (int32_t i = 0; i < e->exec.graph->n_node; i++) {
        if (set->wants[i] == 0) continue;
        fd_observation o = shown(e, set, i);
        FD_TRY(observer->observe(observer->user, &o, err));
    }
    return observer->end ? observer->end(observer->user, err) : FD_OK;
}

fd_code fd_kept_flush(fd_engine *e, fd_error *err) {
    if (!e->kept.ready) return FD_OK;
    FD_TRY(show(e, &e->kept.sets[e->kept.next], err));
    return show(e, &e->kept.sets[1 - e->kept.next], err);
}

void fd_kept_forget(fd_engine *e) {
    if (e->kept.stream) (void)cudaStreamSynchronize(e->kept.stream);
    for (int i = 0; i < 2; i++) e->kept.sets[i].pending = false;
}

fd_code fd_kept_forward(fd_engine *e, const fd_batch *batch, fd_error *err) {
    const fd_observer *observer = &e->exec.observer;
    fd_kept *k = &e->kept;
    fd_kept_set *set = &k->sets[k->next];
    FD_TRY(compute(e, set, batch->tokens[0], batch->pos0, err));
    FD_TRY(fd_kept_flush(e, err)); /* the step before, while this one runs */
    if (observer->begin) FD_TRY(observer->begin(observer->user, batch, err));
    FD_TRY(observe_beside(e, set, batch, err));
    k->next = 1 - k->next;
    e->logits = set->tensor[e->exec.graph->n_node - 1];
    FD_TRY(batch->logits ? fd_copy_logits(e, e->logits, 1, 1, batch->logits, err)
                         : fd_cuda_check(cudaStreamSynchronize(e->queue.stream), "decode step", err));
    return observer->begin ? FD_OK : fd_kept_flush(e, err);
}

/* What an engine holds for as long as it lives: caches, rope tables, plans, the step's memory. */
#include <stdlib.h>
#include <string.h>

#include "engine/fast.h"
#include "engine/internal.h"
#include "model/gguf/quant.h"

static fd_code make_ropes(fd_engine *e, const fd_graph *graph, char *at, fd_error *err) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_ROPE) continue;
        if (fd_table_owner(graph, i) != i) {
            e->rope_of[i] = e->rope_of[fd_table_owner(graph, i)];
            continue;
        }
        fd_rope_tables *t = &e->ropes[e->n_rope];
        size_t half = (size_t)(node->rope.n_rot / 2), size = sizeof(float) * (size_t)e->exec.n_ctx * half;
        const fd_weight *factors = node->weight[0] >= 0 ? &graph->weights[node->weight[0]] : NULL;
        e->rope_of[i] = e->n_rope++;
        t->rope = node->rope;
        t->host_cosine = malloc(size);
        t->host_sine = malloc(size);
        if (!t->host_cosine || !t->host_sine)
            return fd_fail(err, FD_ERR_MEMORY, "rope tables: out of memory for %zu bytes", 2 * size);
        fd_rope_table(&t->rope, factors, 0, e->exec.n_ctx, t->host_cosine, t->host_sine);
        t->cosine = (float *)at;
        t->sine = (float *)(at + fd_table_bytes(node, e->exec.n_ctx));
        FD_TRY(fd_cuda_check(cudaMemcpy(at, t->host_cosine, size, cudaMemcpyHostToDevice), "rope tables", err));
        FD_TRY(
            fd_cuda_check(cudaMemcpy(at + fd_table_bytes(node, e->exec.n_ctx), t->host_sine, size, cudaMemcpyHostToDevice),
                          "rope tables", err));
        at += 2 * fd_table_bytes(node, e->exec.n_ctx);
    }
    return FD_OK;
}

/* fixed: caches, inputs, attention scratch, sampling, rope tables. */
static fd_code make_fixed(fd_engine *e, const fd_graph *graph, fd_error *err) {
    int32_t n_ctx = e->exec.n_ctx;
    FD_TRY(fd_device_alloc(&e->fixed, fd_engine_fixed_bytes(graph, n_ctx, e->exec.n_seq, e->fast), "the K/V cache", err));
    char *at = e->fixed.data;
    for (int32_t i = 0; i < graph->n_node; i++) {
        e->rope_of[i] = -1;
        if (graph->nodes[i].op != FD_OP_KV_WRITE) continue;
        e->cache[i] = (float *)at;
        at += fd_cache_bytes(&graph->nodes[i], n_ctx, e->fast) * (size_t)e->exec.n_seq;
    }
    e->cache_bytes = (size_t)(at - (char *)e->fixed.data);
    e->inputs = (int32_t *)at;
    at += fd_inputs_bytes(n_ctx);
    e->batch_inputs = (int32_t *)(void *)at;
    at += fd_batch_inputs_bytes(e->exec.n_seq);
    e->attention_scratch = (float *)at;
    if (!e->fast) at += fd_scratch_bytes(graph, n_ctx) * (size_t)e->exec.n_seq;
    e->sampling.states = (fd_sample_state *)(void *)at;
    at += fd_sampling_state_bytes(e->exec.n_seq);
    e->sampling.history = (int32_t *)(void *)at;
    at += fd_history_bytes(n_ctx, e->exec.n_seq);
    /* Zero caches: a fault may read rows that nothing wrote. Zero counters of the attention kernels. */
    FD_TRY(fd_cuda_check(cudaMemset(e->fixed.data, 0, (size_t)(at - (char *)e->fixed.data)), "clearing the K/V cache",
                         err));
    return make_ropes(e, graph, at, err);
}

static fd_code make_batch(fd_engine *e, fd_error *err) {
    FD_TRY(e->fast ? fd_plan_make_fast(e->exec.graph, false, &e->batch, err)
                   : fd_plan_make_batch(e->exec.graph, &e->batch, err));
    e->batches = e->exec.n_seq > 1 && fd_plan_batches(e->exec.graph, &e->batch);
    if (!e->batches) return FD_OK;
    fd_run run = {.plan = &e->batch, .n_tok = e->exec.n_seq, .n_kv = e->exec.n_ctx, .tail = FD_ROWS_ALL};
    e->batch_slots = calloc((size_t)e->batch.n_slot + 1, sizeof *e->batch_slots);
    e->batch_graphs = calloc(4 * ((size_t)e->exec.n_seq + 1), sizeof *e->batch_graphs);
    if (!e->batch_slots || !e->batch_graphs) return fd_fail(err, FD_ERR_MEMORY, "engine: out of memory");
    for (int32_t s = 0; s < e->batch.n_slot; s++)
        FD_TRY(fd_device_alloc(&e->batch_slots[s], fd_run_slot_bytes(e, &run, s), "the sequences' step", err));
    if (e->exec.numerics == FD_NUMERICS_Q8ACT)
        FD_TRY(fd_device_reserve(&e->batch_q8_rows, fd_q8_scratch_bytes(e->exec.graph, e->exec.n_seq),
                                 "int8 activations", err));
    return fd_pinned_reserve(&e->batch_inputs_host, fd_batch_inputs_bytes(e->exec.n_seq), "tokens", err);
}

static fd_code make_step_slots(fd_engine *e, bool fuse, fd_error *err) {
    if (e->batches && fuse && e->exec.numerics == FD_NUMERICS_EXACT && fd_plan_batches(e->exec.graph, &e->step))
        e->step_rows = fd_step_rows(e->exec.n_seq);
    int32_t rows = e->fast ? 1 : fd_step_rows(e->exec.n_seq);
    fd_run run = {.plan = &e->step, .n_tok = rows, .n_kv = e->exec.n_ctx, .tail = FD_ROWS_ALL};
    for (int32_t s = 0; s < e->step.n_slot; s++)
        FD_TRY(fd_device_alloc(&e->step_slots[s], fd_run_slot_bytes(e, &run, s), "the decode step", err));
    return FD_OK;
}

fd_code fd_engine_setup(fd_engine *e, bool fuse, fd_int8 int8, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    size_t n = (size_t)graph->n_node;
    e->cache = calloc(n, sizeof *e->cache);
    e->rope_of = calloc(n, sizeof *e->rope_of);
    e->ropes = calloc(n, sizeof *e->ropes);
    e->feeds_cache = calloc(n, sizeof *e->feeds_cache);
    e->watch.pending = calloc(n, sizeof *e->watch.pending);
    if (!e->cache || !e->rope_of || !e->ropes || !e->feeds_cache || !e->watch.pending)
        return fd_fail(err, FD_ERR_MEMORY, "engine: out of memory for %zu nodes", n);
    if (e->fast)
        fd_fast_mark_rows(graph, e->feeds_cache);
    else
        fd_mark_cache_feeders(graph, e->feeds_cache);
    FD_TRY(fd_plan_make(graph, false, &e->nodes, err));
    FD_TRY(fd_plan_make_rows(graph, &e->rows, err));
    e->fuses_rows = fuse;
    FD_TRY(e->fast ? fd_plan_make_fast(graph, fuse, &e->step, err) : fd_plan_make(graph, fuse, &e->step, err));
    e->n_node_slot = e->nodes.n_slot > e->rows.n_slot ? e->nodes.n_slot : e->rows.n_slot;
    e->node_slots = calloc((size_t)e->n_node_slot + 1, sizeof *e->node_slots);
    e->step_slots = calloc((size_t)e->step.n_slot + 1, sizeof *e->step_slots);
    if (!e->node_slots || !e->step_slots) return fd_fail(err, FD_ERR_MEMORY, "engine: out of memory");
    FD_TRY(fd_weights_upload(graph, e->device, e->queue.stream, &e->weights, err));
    FD_TRY(make_fixed(e, graph, err));
    if (e->fast) FD_TRY(fd_fast_setup(e, int8, err));
    FD_TRY(make_batch(e, err));
    if (!e->has_override) FD_TRY(make_step_slots(e, fuse, err));
    /* A captured step holds one sequence's cache where attention is not fused. */
    if (e->exec.n_seq > 1 && !e->batches) e->no_graph = true;
    return fd_pinned_reserve(&e->inputs_host, fd_inputs_bytes(e->exec.n_ctx), "tokens", err);
}

void fd_engine_release(fd_engine *e) {
    for (int i = 0; i < 4; i++)
        if (e->graphs[i / 2][i % 2].exec) (void)cudaGraphExecDestroy(e->graphs[i / 2][i % 2].exec);
    fd_sampling_release(e);
    fd_fast_release(e);
    for (int32_t s = 0; e->node_slots && s < e->n_node_slot; s++) fd_device_free(&e->node_slots[s]);
    for (int32_t s = 0; e->step_slots && s < e->step.n_slot; s++) fd_device_free(&e->step_slots[s]);
    for (int32_t s = 0; e->batch_slots && s < e->batch.n_slot; s++) fd_device_free(&e->batch_slots[s]);
    for (int32_t i = 0; e->batch_graphs && i < 4 * (e->exec.n_seq + 1); i++)
        if (e->batch_graphs[i].exec) (void)cudaGraphExecDestroy(e->batch_graphs[i].exec);
    for (int32_t i = 0; i < e->n_rope; i++) {
        free(e->ropes[i].host_cosine);
        free(e->ropes[i].host_sine);
    }
    fd_weights_free(&e->weights);
    fd_device_free(&e->fixed);
    fd_device_free(&e->q8_rows);
    fd_device_free(&e->batch_q8_rows);
    fd_pinned_free(&e->inputs_host);
    fd_pinned_free(&e->batch_inputs_host);
    fd_pinned_free(&e->logits_host);
    fd_pinned_free(&e->watch.pinned);
    fd_device_free(&e->watch.found);
    fd_device_free(&e->watch.scratch);
    fd_kept_release(e);
    free(e->watch.pending);
    free(e->node_slots);
    free(e->step_slots);
    fd_plan_free(&e->nodes);
    fd_plan_free(&e->rows);
    fd_plan_free(&e->step);
    fd_plan_free(&e->batch);
    free(e->batch_slots);
    free(e->batch_graphs);
    free(e->cache);
    free(e->rope_of);
    free(e->ropes);
    free(e->feeds_cache);
    if (e->queue.stream) (void)cudaStreamDestroy(e->queue.stream);
}

/* What an engine holds for as long as it lives: caches, rope tables, plans, the step's memory. */
#include <stdlib.h>
#include <string.h>

#include "engine/budget.h"
#include "engine/internal.h"
#include "model/gguf/quant.h"

static fd_code make_ropes(fd_engine *e, const fd_graph *graph, char *at, fd_error *err) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_ROPE) continue;
        if (fd_table_owner(graph, i) != i) {
            e->state.rope_of[i] = e->state.rope_of[fd_table_owner(graph, i)];
            continue;
        }
        fd_rope_tables *t = &e->state.ropes[e->state.n_rope];
        size_t half = (size_t)(node->rope.n_rot / 2), size = sizeof(float) * (size_t)e->exec.n_ctx * half;
        const fd_weight *factors = node->weight[0] >= 0 ? &graph->weights[node->weight[0]] : NULL;
        e->state.rope_of[i] = e->state.n_rope++;
        t->rope = node->rope;
        t->host_cosine = malloc(size);
        t->host_sine = malloc(size);
        if (!t->host_cosine || !t->host_sine)
            return fd_fail(err, FD_ERR_MEMORY, "rope tables: out of memory for %zu bytes", 2 * size);
        fd_rope_table(&t->rope, factors, 0, e->exec.n_ctx, t->host_cosine, t->host_sine);
        t->cosine = (float *)at;
        t->sine = (float *)(at + fd_table_bytes(node, e->exec.n_ctx));
        FD_TRY(fd_cuda_check(cudaMemcpy(at, t->host_cosine, size, cudaMemcpyHostToDevice), "rope tables", err));
        FD_TRY(fd_cuda_check(
            cudaMemcpy(at + fd_table_bytes(node, e->exec.n_ctx), t->host_sine, size, cudaMemcpyHostToDevice),
            "rope tables", err));
        at += 2 * fd_table_bytes(node, e->exec.n_ctx);
    }
    return FD_OK;
}

/* fixed: caches, inputs, attention scratch, sampling, rope tables. */
static fd_code make_fixed(fd_engine *e, const fd_graph *graph, fd_error *err) {
    int32_t n_ctx = e->exec.n_ctx;
    FD_TRY(fd_device_alloc(&e->state.fixed, fd_engine_fixed_bytes(graph, n_ctx, e->exec.n_seq, e->fast),
                           "the K/V cache", err));
    char *at = e->state.fixed.data;
    for (int32_t i = 0; i < graph->n_node; i++) {
        e->state.rope_of[i] = -1;
        if (graph->nodes[i].op != FD_OP_KV_WRITE) continue;
        e->state.cache[i] = (float *)at;
        at += fd_cache_bytes(&graph->nodes[i], n_ctx, e->fast) * (size_t)e->exec.n_seq;
    }
    e->state.cache_bytes = (size_t)(at - (char *)e->state.fixed.data);
    e->state.inputs = (int32_t *)at;
    at += fd_inputs_bytes(n_ctx);
    e->state.batch_inputs = (int32_t *)(void *)at;
    at += fd_batch_inputs_bytes(e->exec.n_seq);
    e->state.attention_scratch = (float *)at;
    if (!e->fast) at += fd_scratch_bytes(graph, n_ctx) * (size_t)e->exec.n_seq;
    e->sampling.states = (fd_sample_state *)(void *)at;
    at += fd_sampling_state_bytes(e->exec.n_seq);
    e->sampling.history = (int32_t *)(void *)at;
    at += fd_history_bytes(n_ctx, e->exec.n_seq);
    /* Zero caches: a fault may read rows that nothing wrote. Zero counters of the attention kernels. */
    FD_TRY(fd_cuda_check(cudaMemset(e->state.fixed.data, 0, (size_t)(at - (char *)e->state.fixed.data)),
                         "clearing the K/V cache", err));
    return make_ropes(e, graph, at, err);
}

static fd_plan_kind step_kind(const fd_engine *e, bool fuse) {
    if (e->fast) return fuse ? FD_PLAN_FAST_STEP : FD_PLAN_FAST_BATCH;
    return fuse ? FD_PLAN_STEP : FD_PLAN_NODES;
}

/* Several sequences have exact's products in fast numerics: each must have the bits that it has alone. */
static fd_code choose_int8(fd_engine *e, fd_int8 where, bool *int8, fd_error *err) {
    FD_TRY(fd_plan_make(e->exec.graph, step_kind(e, true), &e->step.one, err));
    if (e->exec.numerics == FD_NUMERICS_Q8ACT) fd_int8_choose_all(e->exec.graph, int8);
    if (e->fast && e->exec.n_seq == 1) fd_int8_choose_faster(&e->device.ctx, &e->step.one, where, int8);
    for (int32_t i = 0; i < e->exec.graph->n_node; i++)
        if (e->fast && int8[i]) e->exec.numerics_name = "fast-int8";
    return FD_OK;
}

static fd_code make_plans(fd_engine *e, bool fuse, fd_int8 where, bool *int8, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    FD_TRY(choose_int8(e, where, int8, err));
    if (!fuse) {
        fd_plan_free(&e->step.one);
        FD_TRY(fd_plan_make(graph, step_kind(e, false), &e->step.one, err));
    }
    FD_TRY(fd_plan_make(graph, e->fast ? FD_PLAN_FAST_BATCH : FD_PLAN_BATCH, &e->step.many, err));
    FD_TRY(fd_plan_make(graph, e->fast ? FD_PLAN_FAST_NODES : FD_PLAN_NODES, &e->prompt.nodes, err));
    FD_TRY(fd_plan_make(graph, e->fast ? FD_PLAN_FAST_ROWS : FD_PLAN_ROWS, &e->prompt.rows, err));
    fd_plan *const all[] = {&e->step.one, &e->step.many, &e->prompt.nodes, &e->prompt.rows};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) fd_plan_mark_int8(all[i], int8);
    e->prompt.fuses_rows = fuse;
    e->step.batches = e->exec.n_seq > 1 && fd_plan_batches(&e->step.many);
    if (e->step.batches && fuse && e->exec.numerics == FD_NUMERICS_EXACT && fd_plan_batches(&e->step.one))
        e->step.one_rows = fd_step_rows(e->exec.n_seq);
    return FD_OK;
}

/* Memory of the steps, whose addresses CUDA graphs hold. */
static fd_code make_steps(fd_engine *e, fd_error *err) {
    int32_t n_ctx = e->exec.n_ctx, n_seq = e->exec.n_seq, rows = e->fast ? 1 : fd_step_rows(n_seq);
    FD_TRY(fd_slots_make(&e->step.one_slots, &e->step.one, NULL, err));
    FD_TRY(fd_slots_make(&e->step.many_slots, &e->step.many, NULL, err));
    if (!e->has_override)
        FD_TRY(fd_slots_reserve(&e->step.one_slots, &e->step.one, (fd_extent){rows, n_ctx, rows}, "the decode step",
                                NULL, err));
    if (!e->step.batches) return FD_OK;
    FD_TRY(fd_slots_reserve(&e->step.many_slots, &e->step.many, (fd_extent){n_seq, n_ctx, n_seq}, "the sequences' step",
                            NULL, err));
    e->step.batch_graphs = calloc(4 * ((size_t)n_seq + 1), sizeof *e->step.batch_graphs);
    if (!e->step.batch_graphs) return fd_fail(err, FD_ERR_MEMORY, "engine: out of memory");
    if (e->exec.numerics == FD_NUMERICS_Q8ACT)
        FD_TRY(fd_device_reserve(&e->step.q8_rows, fd_q8_scratch_bytes(e->exec.graph, n_seq), "int8 activations", err));
    return fd_pinned_reserve(&e->state.batch_inputs_host, fd_batch_inputs_bytes(n_seq), "tokens", err);
}

fd_code fd_engine_setup(fd_engine *e, bool fuse, fd_int8 where, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    size_t n = (size_t)graph->n_node;
    e->state.cache = calloc(n, sizeof *e->state.cache);
    e->state.rope_of = calloc(n, sizeof *e->state.rope_of);
    e->state.ropes = calloc(n, sizeof *e->state.ropes);
    e->sync.pending = calloc(n, sizeof *e->sync.pending);
    bool *int8 = calloc(n, sizeof *int8);
    fd_code code = FD_OK;
    if (!e->state.cache || !e->state.rope_of || !e->state.ropes || !e->sync.pending || !int8)
        code = fd_fail(err, FD_ERR_MEMORY, "engine: out of memory for %zu nodes", n);
    if (code == FD_OK) code = make_plans(e, fuse, where, int8, err);
    free(int8);
    FD_TRY(code);
    FD_TRY(fd_slots_make(&e->prompt.slots, &e->prompt.nodes, &e->prompt.rows, err));
    FD_TRY(fd_weights_upload(graph, e->device.id, e->device.ctx.stream, &e->weights, err));
    FD_TRY(make_fixed(e, graph, err));
    if (e->fast) FD_TRY(fd_fast_setup(e, err));
    FD_TRY(make_steps(e, err));
    /* A captured step holds one sequence's cache where attention is not fused. */
    if (e->exec.n_seq > 1 && !e->step.batches) e->device.no_graph = true;
    return fd_pinned_reserve(&e->state.inputs_host, fd_inputs_bytes(e->exec.n_ctx), "tokens", err);
}

static void release_state(fd_engine_state *state) {
    for (int32_t i = 0; i < state->n_rope; i++) {
        free(state->ropes[i].host_cosine);
        free(state->ropes[i].host_sine);
    }
    free(state->ropes);
    free(state->rope_of);
    free(state->cache);
    fd_device_free(&state->fixed);
    fd_pinned_free(&state->inputs_host);
    fd_pinned_free(&state->batch_inputs_host);
}

static void release_prompt(fd_engine_prompt *prompt) {
    for (int i = 0; i < FD_ROWS_COUNT; i++) fd_graph_forget(&prompt->graphs[i]);
    fd_slots_free(&prompt->slots);
    fd_device_free(&prompt->q8_rows);
    fd_plan_free(&prompt->nodes);
    fd_plan_free(&prompt->rows);
}

static void release_step(fd_engine_step *step, int32_t n_seq) {
    for (int i = 0; i < 4; i++) fd_graph_forget(&step->graphs[i / 2][i % 2]);
    for (int32_t i = 0; step->batch_graphs && i < 4 * (n_seq + 1); i++) fd_graph_forget(&step->batch_graphs[i]);
    free(step->batch_graphs);
    fd_slots_free(&step->one_slots);
    fd_slots_free(&step->many_slots);
    fd_device_free(&step->q8_rows);
    fd_plan_free(&step->one);
    fd_plan_free(&step->many);
}

void fd_engine_release(fd_engine *e) {
    release_step(&e->step, e->exec.n_seq);
    release_prompt(&e->prompt);
    fd_sampling_release(e);
    fd_async_release(e);
    fd_observe_release(e);
    fd_fast_release(e);
    fd_weights_free(&e->weights);
    release_state(&e->state);
    fd_pinned_free(&e->logits_host);
    if (e->device.ctx.stream) (void)cudaStreamDestroy(e->device.ctx.stream);
}

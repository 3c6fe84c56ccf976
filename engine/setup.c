/* What an engine makes before its first pass: plans, weights, state, the steps' memory. */
#include <stdlib.h>
#include <string.h>

#include "engine/budget.h"
#include "engine/internal.h"

static fd_plan_kind step_kind(const fd_engine *e, bool fuse) {
    if (e->fast) return fuse ? FD_PLAN_FAST_STEP : FD_PLAN_FAST_BATCH;
    return fuse ? FD_PLAN_STEP : FD_PLAN_NODES;
}

/* By the whole's rows, as one GPU would. */
static fd_code choose_faster(fd_engine *e, fd_int8 where, bool *int8, fd_error *err) {
    const fd_graph *graph = e->exec.graph, *full = e->split ? e->split->full : graph;
    fd_plan step, batch;
    const fd_plan *const steps[] = {&step, &batch};
    FD_TRY(fd_plan_make(full, FD_PLAN_FAST_STEP, &step, err));
    fd_code code = fd_plan_make(full, FD_PLAN_FAST_BATCH, &batch, err);
    if (code != FD_OK) {
        fd_plan_free(&step);
        return code;
    }
    bool *of_full = calloc((size_t)full->n_node, sizeof *of_full);
    if (of_full) fd_int8_choose_faster(&e->device.ctx, &step, where, of_full);
    if (of_full) fd_int8_agree(steps, e->exec.n_seq > 1 ? 2 : 1, of_full);
    for (int32_t i = 0; i < graph->n_node && of_full; i++)
        int8[i] = of_full[e->split ? e->split->full_id[fd_split_whole(graph, i)->id] : i];
    fd_plan_free(&step);
    fd_plan_free(&batch);
    free(of_full);
    return of_full ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "engine: out of memory");
}

/* Where int8 blocks of several sequences are faster than exact's products, which are fused: everywhere from four
 * sequences on, and of fewer but for Q8_0, which costs exact least (docs/performance-diary.md). */
static fd_int8 for_several(const fd_engine *e) {
    enum { MANY = 4 };
    const fd_graph *graph = e->exec.graph;
    for (int32_t i = 0; i < graph->n_node && e->exec.n_seq < MANY; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op == FD_OP_MATMUL && graph->weights[node->weight[0]].dtype == FD_Q8_0) return FD_INT8_NEVER;
    }
    return FD_INT8_ALWAYS;
}

/* In fast numerics each of several sequences must have the bits that it has alone: what is an int8 product does not
 * depend on how many there are at the time. */
static fd_code choose_int8(fd_engine *e, fd_int8 where, bool *int8, fd_error *err) {
    if (e->exec.numerics == FD_NUMERICS_Q8ACT) fd_int8_choose_all(e->exec.graph, int8);
    if (where == FD_INT8_WHERE_FASTER && e->exec.n_seq > 1) where = for_several(e);
    if (e->fast) FD_TRY(choose_faster(e, where, int8, err));
    for (int32_t i = 0; i < e->exec.graph->n_node; i++)
        if (e->fast && int8[i]) e->exec.numerics_name = "fast-int8";
    return FD_OK;
}

/* Bytes of the halves of a token of each sequence, where products take them. */
static size_t halves_of(const fd_engine *e) {
    return e->fast && e->step.batches ? fd_few_f16_scratch_bytes(e->exec.graph, e->exec.n_seq) : 0;
}

static fd_code make_plans(fd_engine *e, bool fuse, fd_int8 where, bool *int8, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    FD_TRY(choose_int8(e, where, int8, err));
    FD_TRY(fd_plan_make(graph, e->fast ? FD_PLAN_FAST_BATCH : FD_PLAN_BATCH, &e->step.many, err));
    e->step.batches = e->exec.n_seq > 1 && fd_plan_batches(&e->step.many);
    fuse = fuse && halves_of(e) == 0; /* one token has the bits of one of many: its products are theirs */
    FD_TRY(fd_plan_make(graph, step_kind(e, fuse), &e->step.one, err));
    FD_TRY(fd_plan_make(graph, e->fast ? FD_PLAN_FAST_NODES : FD_PLAN_NODES, &e->prompt.nodes, err));
    FD_TRY(fd_plan_make(graph, e->fast ? FD_PLAN_FAST_ROWS : FD_PLAN_ROWS, &e->prompt.rows, err));
    fd_plan *const all[] = {&e->step.one, &e->step.many, &e->prompt.nodes, &e->prompt.rows};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) fd_plan_mark_int8(all[i], int8);
    e->prompt.fuses_rows = fuse; /* not read in fast numerics */
    bool has_int8 = false;       /* whose one-row kernels take no more */
    for (int32_t i = 0; i < e->step.one.n_item; i++) has_int8 = has_int8 || e->step.one.items[i].int8;
    if (e->step.batches && fuse && !has_int8 && fd_plan_batches(&e->step.one))
        e->step.one_rows = fd_step_rows(e->exec.n_seq);
    return FD_OK;
}

/* Memory of the steps, whose addresses CUDA graphs hold. */
static fd_code make_steps(fd_engine *e, fd_error *err) {
    int32_t n_ctx = e->exec.n_ctx, n_seq = e->exec.n_seq, rows = fd_step_rows(n_seq);
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
    if (e->exec.numerics != FD_NUMERICS_EXACT)
        FD_TRY(fd_device_reserve(&e->step.q8_rows, fd_q8_scratch_bytes(e->exec.graph, n_seq), "int8 activations", err));
    if (halves_of(e) > 0) FD_TRY(fd_device_reserve(&e->step.halves, halves_of(e), "halves of activations", err));
    return FD_OK;
}

fd_code fd_engine_setup(fd_engine *e, bool fuse, fd_int8 where, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    size_t n = (size_t)graph->n_node;
    e->sync.pending = calloc(n, sizeof *e->sync.pending);
    bool *int8 = calloc(n, sizeof *int8);
    fd_code code = FD_OK;
    if (!e->sync.pending || !int8) code = fd_fail(err, FD_ERR_MEMORY, "engine: out of memory for %zu nodes", n);
    if (code == FD_OK) code = make_plans(e, fuse, where, int8, err);
    free(int8);
    FD_TRY(code);
    FD_TRY(fd_slots_make(&e->prompt.slots, &e->prompt.nodes, &e->prompt.rows, err));
    FD_TRY(fd_weights_upload(graph, e->split ? e->split->rows : NULL, e->device.id, e->device.ctx.stream, &e->weights,
                             err));
    FD_TRY(fd_state_make(e, err));
    if (e->fast) FD_TRY(fd_fast_setup(e, err));
    FD_TRY(make_steps(e, err));
    /* A captured step holds one sequence's cache where attention is not fused. */
    if (e->exec.n_seq > 1 && !e->step.batches) e->device.no_graph = true;
    return FD_OK;
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
    fd_device_free(&step->halves);
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
    fd_state_release(&e->state);
    fd_pinned_free(&e->logits_host);
    if (e->device.ctx.stream) (void)cudaStreamDestroy(e->device.ctx.stream);
}

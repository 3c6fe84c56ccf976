/* What fast numerics hold beside an engine's weights, caches and tables. */
#include <stdlib.h>

#include "engine/fast.h"

static int64_t elements(const fd_node *node) {
    return fd_node_row_stride(node, 0);
}

static size_t half_bytes(const fd_graph *graph, const fd_fast_plan *plan, int32_t slot, int32_t n_tok) {
    int64_t most = 0;
    for (int32_t i = 0; i < graph->n_node; i++)
        if (plan->half_of[i] == slot && elements(&graph->nodes[i]) > most) most = elements(&graph->nodes[i]);
    return sizeof(uint16_t) * (size_t)most * (size_t)n_tok;
}

/* The largest matrix that a product reads and that is not of binary16 already. */
static size_t weight_bytes(const fd_graph *graph, const fd_fast_plan *plan) {
    size_t most = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_MATMUL || (plan->how[i] != FD_FAST_BY_PRODUCT && plan->how[i] != FD_FAST_INSIDE))
            continue;
        const fd_weight *w = &graph->weights[node->weight[0]];
        fd_device_matrix shape = {.dtype = w->dtype, .n_col = w->n_col};
        size_t bytes = sizeof(uint16_t) * (size_t)w->n_row * (size_t)fd_f16_row_stride(&shape);
        if (w->dtype != FD_F16 && bytes > most) most = bytes;
    }
    return most;
}

static size_t scratch_bytes(const fd_graph *graph, const fd_launch_context *queue, int32_t n_ctx) {
    size_t most = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_ATTN_MIX) continue;
        size_t bytes = fd_attn_decode_f16_scratch(queue, node->shape[0], graph->nodes[node->input[1]].shape[0],
                                                  node->shape[1], n_ctx);
        if (bytes > most) most = bytes;
    }
    return fd_align(most);
}

int64_t fd_fast_scratch_stride(const fd_engine *e) {
    return (int64_t)(scratch_bytes(e->exec.graph, &e->queue, e->exec.n_ctx) / sizeof(float));
}

uint64_t fd_fast_bytes(const fd_graph *graph, int32_t n_ctx, int32_t n_seq, int32_t n_sm) {
    fd_error ignored = {0};
    fd_fast_plan plan;
    fd_plan step, batch;
    fd_launch_context queue = {.n_sm = n_sm};
    fd_engine probe = {.exec = {.graph = graph, .n_ctx = n_ctx}};
    if (fd_fast_plan_make(graph, true, &plan, &ignored) != FD_OK) return 0;
    if (fd_plan_make_fast(graph, true, &step, &ignored) != FD_OK) {
        fd_fast_plan_free(&plan);
        return 0;
    }
    if (fd_plan_make_fast(graph, false, &batch, &ignored) != FD_OK) {
        fd_fast_plan_free(&plan);
        fd_plan_free(&step);
        return 0;
    }
    probe.feeds_cache = calloc((size_t)graph->n_node, sizeof *probe.feeds_cache);
    uint64_t bytes = 0;
    if (probe.feeds_cache) {
        fd_fast_mark_rows(graph, probe.feeds_cache);
        fd_run many = {.plan = &plan.real,
                       .n_tok = n_ctx < FD_FAST_ROWS ? n_ctx : FD_FAST_ROWS,
                       .n_kv = n_ctx,
                       .tail = FD_ROWS_LAST};
        fd_run one = {.plan = &step, .n_tok = 1, .n_kv = n_ctx, .tail = FD_ROWS_ALL};
        bytes = FD_CUBLAS_WORKSPACE + weight_bytes(graph, &plan) + scratch_bytes(graph, &queue, n_ctx) * (uint64_t)n_seq;
        for (int32_t s = 0; s < plan.real.n_slot; s++) bytes += fd_align(fd_run_slot_bytes(&probe, &many, s));
        for (int32_t s = 0; s < plan.n_half; s++) bytes += fd_align(half_bytes(graph, &plan, s, many.n_tok));
        for (int32_t s = 0; s < step.n_slot; s++) bytes += fd_align(fd_run_slot_bytes(&probe, &one, s));
        fd_run each = {.plan = &batch, .n_tok = n_seq, .n_kv = n_ctx, .tail = FD_ROWS_ALL};
        bool batches = n_seq > 1 && fd_plan_batches(graph, &batch);
        for (int32_t s = 0; batches && s < batch.n_slot; s++) bytes += fd_align(fd_run_slot_bytes(&probe, &each, s));
    }
    free(probe.feeds_cache);
    fd_fast_plan_free(&plan);
    fd_plan_free(&step);
    fd_plan_free(&batch);
    return bytes;
}

fd_code fd_fast_setup(fd_engine *e, fd_int8 where, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    struct fd_fast *fast = e->fast;
    FD_TRY(fd_cublas_open(e->queue.stream, &fast->cublas, err));
    FD_TRY(fd_fast_plan_make(graph, true, &fast->many, err));
    FD_TRY(fd_fast_plan_make(graph, false, &fast->one, err));
    fast->int8 = calloc((size_t)graph->n_node, sizeof *fast->int8);
    if (!fast->int8) return fd_fail(err, FD_ERR_MEMORY, "engine: out of memory");
    /* The step of several sequences has exact products, and each must have the bits that it has alone. */
    if (e->exec.n_seq == 1) FD_TRY(fd_fast_choose_int8(&e->queue, graph, where, fast->int8, err));
    for (int32_t i = 0; i < graph->n_node; i++)
        if (fast->int8[i]) e->exec.numerics_name = "fast-int8";
    int32_t n_real = fast->many.real.n_slot > fast->one.real.n_slot ? fast->many.real.n_slot : fast->one.real.n_slot;
    fast->slots = calloc((size_t)n_real + 1, sizeof *fast->slots);
    fast->halves = calloc((size_t)fast->many.n_half + 1, sizeof *fast->halves);
    if (!fast->slots || !fast->halves) return fd_fail(err, FD_ERR_MEMORY, "engine: out of memory");
    fast->n_slot = n_real;
    FD_TRY(fd_device_alloc(&fast->weights, weight_bytes(graph, &fast->many), "a matrix in binary16", err));
    size_t scratch = scratch_bytes(graph, &e->queue, e->exec.n_ctx) * (size_t)e->exec.n_seq;
    FD_TRY(fd_device_alloc(&fast->scratch, scratch, "attention", err));
    return fd_cuda_check(cudaMemset(fast->scratch.data, 0, scratch), "attention", err); /* counters of arrivals */
}

void fd_fast_release(fd_engine *e) {
    struct fd_fast *fast = e->fast;
    if (!fast) return;
    fd_fast_forget_graphs(fast);
    for (int32_t s = 0; fast->slots && s < fast->n_slot; s++) fd_device_free(&fast->slots[s]);
    for (int32_t s = 0; fast->halves && s < fast->many.n_half; s++) fd_device_free(&fast->halves[s]);
    free(fast->int8);
    free(fast->slots);
    free(fast->halves);
    fd_device_free(&fast->shown);
    fd_device_free(&fast->mixed);
    fd_device_free(&fast->attended);
    fd_device_free(&fast->weights);
    fd_device_free(&fast->scratch);
    fd_fast_plan_free(&fast->many);
    fd_fast_plan_free(&fast->one);
    fd_cublas_close(fast->cublas);
    free(fast);
    e->fast = NULL;
}

/* What observers want and the pass keeps nowhere in binary32. */
static fd_code reserve_shown(fd_engine *e, const fd_run *run, const fd_fast_plan *plan, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    size_t most = 0, mixed = 0, attended = 0;
    if (!e->exec.observer.observe) return FD_OK;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (plan->real.slot_of[i] >= 0 || !fd_watch_wants(e, i)) continue;
        size_t bytes = (size_t)fd_run_row_bytes(run, node) * (size_t)run->n_tok;
        if (bytes > most) most = bytes;
        if (node->op == FD_OP_ATTN_MIX && bytes > mixed) mixed = bytes;
        if (node->op == FD_OP_ATTN_SOFTMAX && bytes > attended) attended = bytes;
    }
    FD_TRY(fd_device_reserve(&e->fast->shown, most, "an observed tensor", err));
    FD_TRY(fd_device_reserve(&e->fast->mixed, mixed, "an observed tensor", err));
    return fd_device_reserve(&e->fast->attended, attended, "an observed tensor", err);
}

/* A block of a captured pass: that holds its address. */
static fd_code reserve(fd_engine *e, fd_block *block, size_t size, fd_error *err) {
    if (size > block->size) fd_fast_forget_graphs(e->fast);
    return fd_device_reserve(block, size, "activations", err);
}

fd_code fd_fast_reserve(fd_engine *e, const fd_run *run, const fd_fast_plan *plan, fd_error *err) {
    for (int32_t s = 0; s < plan->real.n_slot; s++)
        FD_TRY(reserve(e, &e->fast->slots[s], fd_run_slot_bytes(e, run, s), err));
    for (int32_t s = 0; s < plan->n_half; s++)
        FD_TRY(reserve(e, &e->fast->halves[s], half_bytes(e->exec.graph, plan, s, run->n_tok), err));
    return reserve_shown(e, run, plan, err);
}

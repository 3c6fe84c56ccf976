/* What lives as long as an engine, beside the weights: one block of device memory, and the tokens on their way to it. */
#include "engine/state.h"

#include <stdlib.h>

#include "engine/internal.h"
#include "engine/recurrent.h"
#include "kernels/attention/attention.h"

/* ---- the block ---- */

/* The first ROPE node with the same table. */
static int32_t table_owner(const fd_graph *graph, int32_t id) {
    for (int32_t i = 0; i < id; i++)
        if (graph->nodes[i].op == FD_OP_ROPE && fd_rope_same_table(&graph->nodes[i], &graph->nodes[id])) return i;
    return id;
}

/* Of cosines, or of sines. */
static size_t table_bytes(const fd_node *rope, int32_t n_ctx) {
    return fd_align(sizeof(float) * (size_t)n_ctx * (size_t)(rope->rope.n_rot / 2));
}

bool fd_cache_is_half(const fd_node *kv_write, bool fast) {
    return fast || kv_write->kv_type == FD_F16;
}

size_t fd_cache_bytes(const fd_node *kv_write, int32_t n_ctx, bool halves) {
    size_t element = halves ? sizeof(uint16_t) : sizeof(float);
    return fd_align(element * (size_t)n_ctx * (size_t)fd_node_row_stride(kv_write, 0));
}

size_t fd_kept_bytes(const fd_graph *graph, const fd_node *node, int32_t n_ctx, bool fast) {
    return node->op == FD_OP_KV_WRITE ? fd_cache_bytes(node, n_ctx, fd_cache_is_half(node, fast))
                                      : fd_recurrent_bytes(graph, node);
}

size_t fd_attention_scratch_bytes(const fd_graph *graph, int32_t n_ctx) {
    size_t most = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_ATTN_MIX) continue;
        size_t bytes =
            fd_attn_decode_scratch(node->shape[0], graph->nodes[node->input[1]].shape[0], node->shape[1], n_ctx);
        if (bytes > most) most = bytes;
    }
    return fd_align(most);
}

static size_t take(fd_state_layout *l, size_t bytes) {
    size_t at = l->bytes;
    l->bytes += fd_align(bytes);
    return at;
}

fd_state_layout fd_state_lay_out(const fd_graph *graph, int32_t n_ctx, int32_t n_seq, bool fast) {
    fd_state_layout l = {0};
    size_t sequences = (size_t)n_seq;
    for (int32_t i = 0; i < graph->n_node; i++)
        (void)take(&l, fd_kept_bytes(graph, &graph->nodes[i], n_ctx, fast) * sequences);
    l.cache_bytes = l.bytes;
    l.inputs = take(&l, sizeof(int32_t) * (size_t)(FD_INPUT_TOKENS + n_ctx));
    l.batch_inputs = take(&l, sizeof(int32_t) * (FD_INPUT_TOKENS + 3 * sequences));
    l.scratch = take(&l, fast ? 0 : fd_attention_scratch_bytes(graph, n_ctx) * sequences);
    l.samplers = take(&l, sizeof(fd_sample_state) * sequences);
    l.history = take(&l, sizeof(int32_t) * ((size_t)n_ctx + 1) * sequences);
    l.tables = l.bytes;
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ROPE && table_owner(graph, i) == i)
            (void)take(&l, 2 * table_bytes(&graph->nodes[i], n_ctx));
    return l;
}

/* ---- RoPE tables ---- */

static fd_code make_table(const fd_graph *graph, const fd_node *node, int32_t n_ctx, char *at, fd_rope_tables *t,
                          fd_error *err) {
    size_t half = (size_t)(node->rope.n_rot / 2), size = sizeof(float) * (size_t)n_ctx * half;
    const fd_weight *factors = node->weight[0] < 0 ? NULL : &graph->weights[node->weight[0]];
    t->host_cosine = malloc(size);
    t->host_sine = malloc(size);
    if (!t->host_cosine || !t->host_sine)
        return fd_fail(err, FD_ERR_MEMORY, "rope tables: out of memory for %zu bytes", 2 * size);
    fd_rope_table(&node->rope, factors, 0, n_ctx, t->host_cosine, t->host_sine);
    t->cosine = (float *)(void *)at;
    t->sine = (float *)(void *)(at + table_bytes(node, n_ctx));
    FD_TRY(fd_cuda_check(cudaMemcpy(at, t->host_cosine, size, cudaMemcpyHostToDevice), "rope tables", err));
    return fd_cuda_check(cudaMemcpy(at + table_bytes(node, n_ctx), t->host_sine, size, cudaMemcpyHostToDevice),
                         "rope tables", err);
}

static fd_code make_tables(const fd_graph *graph, int32_t n_ctx, char *at, fd_engine_state *state, fd_error *err) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        state->rope_of[i] = -1;
        if (node->op != FD_OP_ROPE) continue;
        int32_t owner = table_owner(graph, i);
        state->rope_of[i] = owner == i ? state->n_rope++ : state->rope_of[owner];
        if (owner != i) continue;
        FD_TRY(make_table(graph, node, n_ctx, at, &state->ropes[state->rope_of[i]], err));
        at += 2 * table_bytes(node, n_ctx);
    }
    return FD_OK;
}

/* ---- all of it ---- */

fd_code fd_state_make(fd_engine *e, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    fd_engine_state *state = &e->state;
    size_t n = (size_t)graph->n_node;
    fd_state_layout l = fd_state_lay_out(graph, e->exec.n_ctx, e->exec.n_seq, e->fast);
    state->cache = calloc(n, sizeof *state->cache);
    state->rope_of = calloc(n, sizeof *state->rope_of);
    state->ropes = calloc(n, sizeof *state->ropes);
    if (!state->cache || !state->rope_of || !state->ropes)
        return fd_fail(err, FD_ERR_MEMORY, "engine: out of memory for %zu nodes", n);
    FD_TRY(fd_device_alloc(&state->fixed, l.bytes, "the K/V cache", err));
    char *base = state->fixed.data, *cache = base;
    for (int32_t i = 0; i < graph->n_node; i++) {
        size_t bytes = fd_kept_bytes(graph, &graph->nodes[i], e->exec.n_ctx, e->fast) * (size_t)e->exec.n_seq;
        if (bytes > 0) state->cache[i] = (float *)(void *)cache;
        cache += bytes;
    }
    state->cache_bytes = l.cache_bytes;
    state->inputs = (int32_t *)(void *)(base + l.inputs);
    state->batch_inputs = (int32_t *)(void *)(base + l.batch_inputs);
    state->attention_scratch = (float *)(void *)(base + l.scratch);
    e->sampling.states = (fd_sample_state *)(void *)(base + l.samplers);
    e->sampling.history = (int32_t *)(void *)(base + l.history);
    /* Zero caches: a fault may read rows that nothing wrote. Zero counters of the attention kernels. */
    FD_TRY(fd_cuda_check(cudaMemset(base, 0, l.tables), "clearing the K/V cache", err));
    FD_TRY(make_tables(graph, e->exec.n_ctx, base + l.tables, state, err));
    FD_TRY(fd_pinned_reserve(&state->inputs_host, l.batch_inputs - l.inputs, "tokens", err));
    return fd_pinned_reserve(&state->batch_inputs_host, l.scratch - l.batch_inputs, "tokens", err);
}

void fd_state_release(fd_engine_state *state) {
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

#include "engine/recurrent.h"

#include <assert.h>

#include "engine/internal.h"

static_assert((int)FD_RECURRENT_MAX_STATE == (int)FD_MAX_STATE, "states that the graph allows fit the kernels");

static bool has_state(fd_op op) {
    return op == FD_OP_SSM_SCAN || op == FD_OP_GATED_DELTA || op == FD_OP_WKV7;
}

bool fd_recurrent_keeps(const fd_graph *graph, const fd_node *node) {
    if (!has_state(node->op) || node->override) return false;
    const fd_node *cache = &graph->nodes[node->input[0]];
    return cache->op == FD_OP_KV_WRITE && !cache->override && cache->row_offset == 0;
}

/* Every element of the output has a state, as wide as what reads it. */
static size_t state_bytes(const fd_graph *graph, const fd_node *node) {
    return fd_align(sizeof(float) * (size_t)fd_node_width(node) * (size_t)graph->nodes[node->input[1]].shape[1]);
}

size_t fd_recurrent_bytes(const fd_graph *graph, const fd_node *node) {
    if (!fd_recurrent_keeps(graph, node)) return 0;
    return state_bytes(graph, node) + fd_align(sizeof(int32_t) * (size_t)fd_node_width(node));
}

fd_kept_state fd_recurrent_kept(const fd_engine *engine, const fd_node *node) {
    const fd_graph *graph = engine->exec.graph;
    if (!fd_recurrent_keeps(graph, node)) return (fd_kept_state){0};
    char *at = (char *)engine->state.cache[node->id] + fd_recurrent_bytes(graph, node) * (size_t)engine->exec.sequence;
    return (fd_kept_state){.state = (float *)(void *)at,
                           .position = (int32_t *)(void *)(at + state_bytes(graph, node))};
}

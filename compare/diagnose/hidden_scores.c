#include "compare/diagnose/hidden_scores.h"

#include <math.h>
#include <stdlib.h>

#include "compare/replay/replay.h"

/* e^-80 is 2e-35: a float holds it. */
#define MOST_BELOW 80.0f

/* The softmax that reads these scores. */
static const fd_node *softmax_of(const fd_graph *graph, int32_t scores) {
    for (int32_t i = scores + 1; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ATTN_SOFTMAX && graph->nodes[i].input[0] == scores) return &graph->nodes[i];
    return NULL;
}

static void hide(const double *weight, int32_t n_kv, int32_t pos, float *score) {
    float most = -INFINITY;
    for (int32_t key = 0; key <= pos && key < n_kv; key++)
        if (weight[key] > 0) most = fmaxf(most, score[key]);
    for (int32_t key = 0; key <= pos && key < n_kv; key++)
        if (weight[key] == 0.0 && score[key] > most - MOST_BELOW) score[key] = -INFINITY;
}

fd_code fd_hide_scores(const fd_diagnose_options *o, const fd_node *node, int32_t first, int32_t n, int32_t n_kv,
                       float *rows, fd_error *err) {
    const bool asked = node->id == o->finding->node && node->op == FD_OP_ATTN_SCORES;
    const fd_node *softmax = asked ? softmax_of(o->graph, node->id) : NULL;
    const int32_t at = softmax ? fd_trace_find(o->trace, softmax->name) : -1;
    const int64_t stride = fd_node_row_stride(node, n_kv);
    if (at < 0 || softmax->shape[0] != node->shape[0]) return FD_OK;
    double *weights = malloc(2 * sizeof *weights * (size_t)stride); /* and scratch after it */
    fd_code code = weights ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: explanation: out of memory", node->name);
    for (int32_t p = 0; p < n && code == FD_OK; p++) {
        bool there = false;
        code = fd_replay_read_row(o->trace, at, softmax, first + p, n_kv, weights + stride, weights, &there, err);
        for (int64_t head = 0; head < node->shape[0] && there && code == FD_OK; head++)
            hide(weights + head * n_kv, n_kv, first + p, rows + p * stride + head * n_kv);
    }
    free(weights);
    return code;
}

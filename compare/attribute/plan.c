#include "compare/attribute/plan.h"

#include <stdlib.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "dumpers/store/place.h"
#include "faults/faults.h"

/* Positions replayed together: weights are dequantised once for all of them. */
enum { RANGE = 64, SAMPLE = 8 };

/* Three layers, those that have a kind of tensor that these lack (attention, in a model of mostly recurrent layers), and what
 * is in no layer. */
static fd_code choose_sample(const fd_graph *graph, bool *judged, fd_error *err) {
    int32_t last = graph->hparams.n_layer - 1;
    bool *layers = calloc((size_t)last + 2, sizeof *layers);
    if (!layers) return fd_fail(err, FD_ERR_MEMORY, "planning a replay: out of memory");
    layers[0] = layers[last / 2] = layers[last] = true;
    for (int32_t i = 0; i < graph->n_node; i++) {
        int32_t layer = graph->nodes[i].layer;
        bool seen = layer < 0 || layers[layer];
        for (int32_t k = 0; k < graph->n_node && !seen; k++) {
            bool sampled = graph->nodes[k].layer >= 0 && layers[graph->nodes[k].layer];
            seen = sampled && fd_fault_same_kind(&graph->nodes[k], &graph->nodes[i]);
        }
        if (!seen) layers[layer] = true;
    }
    for (int32_t i = 0; i < graph->n_node; i++) judged[i] = graph->nodes[i].layer < 0 || layers[graph->nodes[i].layer];
    free(layers);
    return FD_OK;
}

static fd_code find_whole(const fd_attribution_options *o, int32_t n_pos, bool **out, fd_error *err) {
    const fd_graph *graph = o->graph;
    size_t n = (size_t)graph->n_node;
    int32_t *in_trace = malloc(sizeof *in_trace * n);
    bool *whole = *out = malloc(sizeof *whole * n);
    if (!in_trace || !whole) {
        free(in_trace);
        return fd_fail(err, FD_ERR_MEMORY, "planning a replay: out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        bool ignored = o->ignored && o->ignored[i];
        in_trace[i] = ignored ? -1 : fd_trace_find(o->cand, graph->nodes[i].name);
        whole[i] = in_trace[i] >= 0 && !(o->unrounded && o->unrounded[i]);
    }
#pragma omp critical(fd_trace)
    for (int32_t p = 0; p < n_pos; p++) /* outside: a trace has tables of positions */
        for (size_t i = 0; i < n; i++) whole[i] = whole[i] && fd_trace_holds(o->cand, in_trace[i], p);
    free(in_trace);
    return FD_OK;
}

static void need_inputs(const fd_node *node, bool *needed) {
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0) needed[node->input[k]] = true;
}

static void find_needed(const fd_attribution_options *o, const bool *whole, fd_replay_plan *plan) {
    for (int32_t i = o->graph->n_node - 1; i >= 0; i--) {
        const fd_node *node = &o->graph->nodes[i];
        bool judged = plan->judged[i] && fd_trace_has_data(o->cand, node->name);
        plan->needed[i] |= judged;
        if (plan->needed[i] && (judged || !whole[i])) need_inputs(node, plan->needed);
    }
}

/* What a sample's last positions read of those between: caches, and what unrecorded ones are made of. */
static void find_in_gap(const fd_graph *graph, const bool *whole, bool *in_gap) {
    for (int32_t i = graph->n_node - 1; i >= 0; i--) {
        in_gap[i] |= graph->nodes[i].op == FD_OP_KV_WRITE;
        if (in_gap[i] && !whole[i]) need_inputs(&graph->nodes[i], in_gap);
    }
}

/* Multiplications of a row by weights, of `nodes` but those that are `known`; an expert's are all experts'. */
static double products_of(const fd_graph *graph, const bool *nodes, const bool *known) {
    double n = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        if (!nodes[i] || (known && known[i]) || !fd_dot_is_product(graph->nodes[i].op)) continue;
        const fd_weight *weight = &graph->weights[graph->nodes[i].weight[0]];
        n += (double)weight->n_row * (double)weight->n_col;
    }
    return n;
}

/* The first positions and the last ones, where a step of one row has kernels of its own. What lies between is worth as much as these. */
static void choose_positions(const fd_attribution_options *o, const bool *whole, fd_replay_plan *plan) {
    const int32_t between = o->n_pos - 2 * SAMPLE;
    plan->most = SAMPLE;
    if (between <= 0) return;
    find_in_gap(o->graph, whole, plan->in_gap);
    for (int32_t i = 0; i < o->graph->n_node; i++) plan->in_gap[i] &= plan->needed[i];
    if (between * products_of(o->graph, plan->in_gap, whole) <=
        2 * SAMPLE * products_of(o->graph, plan->needed, NULL)) {
        plan->gap = SAMPLE;
        plan->gap_end = o->n_pos - SAMPLE;
    } else {
        plan->n_pos = plan->gap = plan->gap_end = 2 * SAMPLE;
    }
}

fd_code fd_replay_plan_make(const fd_attribution_options *o, fd_replay_plan *plan, fd_error *err) {
    size_t n = (size_t)o->graph->n_node;
    *plan = (fd_replay_plan){.n_pos = o->n_pos, .gap = o->n_pos, .gap_end = o->n_pos, .most = RANGE};
    plan->judged = malloc(sizeof *plan->judged * n);
    plan->needed = calloc(n, sizeof *plan->needed);
    plan->in_gap = calloc(n, sizeof *plan->in_gap);
    if (!plan->judged || !plan->needed || !plan->in_gap)
        return fd_fail(err, FD_ERR_MEMORY, "planning a replay: out of memory");
    for (size_t i = 0; i < n; i++) plan->judged[i] = true;
    if (o->sample) FD_TRY(choose_sample(o->graph, plan->judged, err));
    for (size_t i = 0; i < n && o->wanted; i++) plan->judged[i] &= o->wanted[i];
    FD_TRY(find_whole(o, o->n_pos, &plan->whole, err));
    find_needed(o, plan->whole, plan);
    if (o->sample) choose_positions(o, plan->whole, plan);
    return FD_OK;
}

void fd_replay_plan_free(fd_replay_plan *plan) {
    free(plan->judged);
    free(plan->needed);
    free(plan->in_gap);
    free(plan->whole);
    *plan = (fd_replay_plan){0};
}

int32_t fd_replay_plan_range(const fd_replay_plan *plan, int32_t pos0) {
    bool in_gap = pos0 >= plan->gap && pos0 < plan->gap_end;
    int32_t end = pos0 < plan->gap ? plan->gap
                  : in_gap         ? plan->gap_end
                                   : plan->n_pos,
            most = in_gap ? RANGE : plan->most;
    return end - pos0 < most ? end - pos0 : most;
}

double fd_replay_plan_outputs(const fd_graph *graph, int32_t n_pos) {
    double n = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        n += node->over_kv ? (double)node->shape[0] * n_pos * (n_pos + 1) / 2
                           : (double)fd_node_elements(node, 1) * n_pos;
    }
    return n;
}

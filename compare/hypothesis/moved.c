/* The same hypothesis about another node: of another layer, of another weight, or of all nodes of the kind. */
#include <stdio.h>
#include <string.h>

#include "compare/hypothesis/internal.h"

/* The node of `layer` that is there what `node` is in its own; -1. */
static int32_t sibling(const fd_graph *graph, int32_t node, int32_t layer) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].layer == layer &&
            strcmp(fd_fault_suffix(&graph->nodes[i]), fd_fault_suffix(&graph->nodes[node])) == 0)
            return i;
    return -1;
}

/* The weight that is to `layer` what `weight` is to layer `own`: "blk.3.attn_k.bias" for "blk.2.attn_k.bias"; -1. */
static int32_t weight_in(const fd_graph *graph, int32_t weight, int32_t own, int32_t layer) {
    const char *name = graph->weights[weight].name;
    char moved[96];
    int of = -1, n = 0;
    if (sscanf(name, "blk.%d.%n", &of, &n) != 1 || n == 0) return weight;
    snprintf(moved, sizeof moved, "blk.%d.%s", of + layer - own, name + n);
    for (int32_t i = 0; i < graph->n_weight; i++)
        if (strcmp(graph->weights[i].name, moved) == 0) return i;
    return -1;
}

/* What a layer is given: the output of the one before it, or the embedding; -1. */
static int32_t stream_into(const fd_graph *graph, int32_t layer) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const int32_t in = graph->nodes[i].input[0];
        if (graph->nodes[i].layer == layer && in >= 0) return graph->nodes[in].layer != layer ? in : -1;
    }
    return -1;
}

/* The input that is to `node` what `other` is to `own`; -1. */
static int32_t input_of(const fd_graph *graph, int32_t other, const fd_node *own, const fd_node *node) {
    if (own->layer >= 0 && other == stream_into(graph, own->layer)) return stream_into(graph, node->layer);
    return sibling(graph, other, node->layer + graph->nodes[other].layer - own->layer);
}

bool fd_hypothesis_at(const fd_hypothesis *h, const fd_graph *graph, const fd_node *node, fd_hypothesis *out) {
    *out = *h;
    if (h->node < 0 && h->readers > 0) {
        int32_t from = graph->nodes[h->readers - 1].layer;
        int32_t moved = from < 0 || node->layer < 0 ? h->readers - 1 : sibling(graph, h->readers - 1, node->layer);
        out->readers = moved + 1;
        if (h->guess == FD_GUESS_INPUT && from >= 0 && graph->nodes[h->other].layer >= 0)
            out->other = sibling(graph, h->other, node->layer + graph->nodes[h->other].layer - from);
        if (moved < 0 || out->other < 0) return false;
    }
    if (h->node < 0 && h->guess == FD_GUESS_WEIGHT && !h->kind[0]) { /* in the other layer: the two are exchanged */
        if (node->layer == h->other) out->layer = h->other, out->other = h->layer;
        return node->layer == h->layer || node->layer == h->other;
    }
    if (h->node < 0) {
        out->layer = FD_ANY_LAYER;
        return true;
    }
    const fd_node *own = &graph->nodes[h->node];
    int32_t to = sibling(graph, h->node, node->layer);
    if (to < 0) to = own->op == node->op ? node->id : -1;
    if (to < 0) return false;
    out->node = to;
    if (h->guess == FD_GUESS_WEIGHT && to != h->node) {
        out->other = weight_in(graph, h->other, own->layer, graph->nodes[to].layer);
        return out->other >= 0;
    }
    const bool of_other = h->guess == FD_GUESS_CACHE && h->which == FD_CACHE_OF;
    if (h->guess == FD_GUESS_INPUT || h->guess == FD_GUESS_COPY || of_other) {
        out->other = input_of(graph, h->other, own, node);
        return out->other >= 0 && out->other < to;
    }
    return true;
}

/* The weight that is to `node` what `weight` is to `own`: of the layer whose node of own's kind reads it; -1. */
static int32_t weight_as(const fd_graph *graph, int32_t weight, int slot, const fd_node *own, const fd_node *node) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *of = &graph->nodes[i];
        if (of->weight[slot] != weight || strcmp(fd_fault_suffix(of), fd_fault_suffix(own)) != 0) continue;
        const int32_t to = sibling(graph, node->id, of->layer);
        return to < 0 ? -1 : graph->nodes[to].weight[slot];
    }
    return -1;
}

bool fd_hypothesis_as(const fd_hypothesis *h, const fd_graph *graph, const fd_node *node, fd_hypothesis *out) {
    *out = *h;
    if (h->node < 0) return false;
    const fd_node *own = &graph->nodes[h->node];
    const int64_t width = fd_node_width(node), own_width = fd_node_width(own);
    const bool mapped = h->guess == FD_GUESS_MAPPED && fd_hypothesis_may_be_mapped(h, own) &&
                        fd_hypothesis_may_be_mapped(h, node); /* K's as V's */
    if (own->op != node->op && !mapped) return false;
    out->node = node->id;
    if (h->guess == FD_GUESS_WEIGHT) {
        out->other = weight_as(graph, h->other, h->which, own, node);
        out->first = (int32_t)(h->first * width / own_width);
        out->end = (int32_t)(h->end * width / own_width);
        return out->other >= 0 && node->weight[h->which] >= 0;
    }
    if (h->guess != FD_GUESS_COPY) return true;
    if (h->other == own->input[0]) out->other = node->input[0];
    if (h->end == own_width) out->end = (int32_t)width;
    return true;
}

fd_hypothesis fd_hypothesis_everywhere(const fd_hypothesis *h, const fd_graph *graph) {
    const fd_node *own = &graph->nodes[h->node];
    fd_hypothesis out = *h;
    out.node = -1;
    out.layer = FD_ANY_LAYER;
    out.ops = (int32_t)own->op + 1;
    snprintf(out.kind, sizeof out.kind, "%s", fd_fault_suffix(own));
    return out;
}

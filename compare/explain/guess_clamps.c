/* Values that are cut off inside the span: what became of them shows by how much. */
#include "compare/explain/guesses.h"
#include "compare/explain/solve.h"

/* A product that is added to the stream. */
static bool is_branch(const fd_graph *graph, const fd_node *node) {
    bool added = false;
    for (int32_t i = node->id + 1; i < graph->n_node && node->op == FD_OP_MATMUL; i++)
        added |= graph->nodes[i].op == FD_OP_ADD && graph->nodes[i].input[1] == node->id;
    return added;
}

/* The activation of an FFN, before up is multiplied or without it; sums of the stream, and what is added there. */
static bool may_be_cut(const fd_graph *graph, const fd_node *node) {
    return node->layer >= 0 && (is_branch(graph, node) || node->op == FD_OP_SILU_MUL || node->op == FD_OP_GELU_MUL ||
                                node->op == FD_OP_GELU || node->op == FD_OP_SILU || node->op == FD_OP_RELU_SQUARED ||
                                node->op == FD_OP_ADD);
}

static fd_code try_node(fd_trial *t, const fd_node *node, bool everywhere, fd_error *err) {
    const bool gated = node->op == FD_OP_SILU_MUL || node->op == FD_OP_GELU_MUL;
    for (int pass = gated; pass >= 0 && !fd_trial_fits(t); pass--) {
        fd_hypothesis h = {.guess = FD_GUESS_CLAMP, .node = node->id, .which = pass ? 4 : 0};
        if (everywhere) h = fd_hypothesis_everywhere(&h, t->all.request->args.graph);
        FD_TRY(fd_solve_limit(t, h, err));
    }
    return FD_OK;
}

fd_code fd_guess_clamps(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    const bool many = fd_trial_many_layers(t);
    int32_t first = -1;
    for (int32_t i = 0; i < t->n_span && many && !fd_trial_fits(t);
         i++) { /* in every layer, or one by one is too much */
        const fd_node *node = &nodes[t->span[i]];
        if (first < 0) first = node->layer;
        if (node->layer == first && may_be_cut(t->all.request->args.graph, node)) FD_TRY(try_node(t, node, true, err));
    }
    for (int32_t i = t->n_span - 2; i >= 0 && !many && !fd_trial_fits(t);
         i--) /* the last shows its own (guess_elements.c) */
        if (may_be_cut(t->all.request->args.graph, &nodes[t->span[i]]))
            FD_TRY(try_node(t, &nodes[t->span[i]], false, err));
    return FD_OK;
}

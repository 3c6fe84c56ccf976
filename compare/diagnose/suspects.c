#include "compare/diagnose/suspects.h"

#include <string.h>

fd_node_finding fd_first_suspect(const fd_graph *graph, const fd_attribution *of) {
    fd_node_finding first = {0};
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node_finding *f = &of->suspect[i];
        if (f->finding == FD_FOUND_NOTHING) continue;
        if (first.finding == FD_FOUND_NOTHING || f->step < first.step) first = *f;
    }
    return first;
}

bool fd_is_of_class(const fd_hypothesis *h) {
    return fd_hypothesis_is_another_class(h) ||
           (h->guess == FD_GUESS_FAULT && strcmp(fd_fault_at(h->fault)->family, "numerics") == 0);
}

bool fd_explains_by_rounding(const fd_explanation *e) {
    return fd_is_of_class(&e->remaining[0].hypothesis);
}

bool fd_explains_by_one_rounding(const fd_explanation *e) {
    return e->remaining[0].hypothesis.guess == FD_GUESS_ROUNDED;
}

bool fd_explains_by_attention_factors(const fd_graph *graph, const fd_explanation *e) {
    const fd_hypothesis *h = &e->remaining[0].hypothesis;
    const bool factors = h->guess == FD_GUESS_ROUNDED && (h->which == FD_ROUNDED_INPUT || h->which == FD_ROUNDED_BOTH);
    const fd_op op = h->node >= 0 ? graph->nodes[h->node].op : (fd_op)(h->ops - 1);
    return factors && (op == FD_OP_ATTN_SCORES || op == FD_OP_ATTN_MIX);
}

bool fd_explains_by_fit(const fd_graph *graph, const fd_explanation *e) {
    const fd_hypothesis *h = &e->remaining[0].hypothesis;
    const bool sums = h->which == FD_OWN_ROW_FACTOR && h->node >= 0 && graph->nodes[h->node].op == FD_OP_ATTN_MIX;
    if (h->guess == FD_GUESS_OWN && sums) return false; /* one number for a whole head: no rounding is that */
    return (h->guess == FD_GUESS_OWN && h->which != FD_OWN_LOG_SOFTMAX) || fd_hypothesis_fits_cache(h);
}

/* After the prompt alone, in one layer alone: a value on the other side of a step that stayed in the cache does that, and
 * anything takes it back that changes little. A bug of decode is one of every layer, or its errors are beyond the bounds. */
static bool may_be_one_step(const fd_graph *graph, const fd_attribution *of, const fd_node_finding *first) {
    bool one_layer = true;
    for (int32_t i = 0; i < graph->n_node; i++)
        one_layer &=
            of->suspect[i].finding == FD_FOUND_NOTHING || graph->nodes[i].layer == graph->nodes[first->node].layer;
    return fd_class_rounds_to_steps(of->numerics) && first->step > 0 && one_layer;
}

/* One value on the other side of a step makes a row odd, or two, and any small change may take it back. */
enum { FEWEST_TO_NAME = 3 };

/* An earlier suspect reads the same input: one value in it moves both. */
static bool is_moved_with_another(const fd_graph *graph, const fd_attribution *of, int32_t node) {
    bool any = false;
    for (int32_t i = 0; i < node; i++)
        any |= of->suspect[i].finding != FD_FOUND_NOTHING && graph->nodes[i].input[0] == graph->nodes[node].input[0];
    return any;
}

static bool too_few_to_name(const fd_graph *graph, const fd_attribution *of, const fd_node_finding *first) {
    int32_t n_odd = 0;
    for (int32_t i = 0; i < graph->n_node; i++)
        if (of->suspect[i].finding != FD_FOUND_NOTHING && !is_moved_with_another(graph, of, i))
            n_odd += of->suspect[i].n_odd;
    return fd_class_rounds_to_steps(of->numerics) && first->usual <= 0 && n_odd < FEWEST_TO_NAME;
}

fd_code fd_resolve_suspects(const fd_diagnose_options *ask, fd_attribution *of, fd_node_finding *left, fd_error *err) {
    const fd_graph *graph = ask->graph;
    fd_node_finding first = fd_first_suspect(graph, of);
    fd_diagnose_options how = *ask;
    fd_explanation e;
    *left = (fd_node_finding){0};
    if (first.finding == FD_FOUND_NOTHING) return FD_OK;
    if (of->found) {
        fd_attribution_promote(graph, of, fd_fault_suffix(&graph->nodes[of->first.node]));
        return FD_OK;
    }
    how.finding = &first;
    FD_TRY(fd_diagnose(&how, &e, err));
    bool rounded = fd_explains_by_rounding(&e) || fd_explains_by_one_rounding(&e);
    bool by_size = first.usual > 0;
    /* rows to their last bits, by a change that is large itself (fd_trial_turns_steps_alone) */
    const bool repeated = e.remaining[0].n_repeated >= FEWEST_TO_NAME;
    const bool by_chance = may_be_one_step(graph, of, &first) || too_few_to_name(graph, of, &first);
    if (e.named && !rounded && (repeated || !by_chance))
        fd_attribution_promote(graph, of, NULL);
    else if (!(by_size && e.n_remaining > 0 && rounded)) /* in a class that rounds, other roundings are noise */
        *left = first;
    return FD_OK;
}

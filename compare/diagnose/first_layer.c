#include "compare/diagnose/first_layer.h"

#include <stdio.h>

static bool by_what_is_left(const fd_node_finding *f) {
    return f->n_odd > 0 && f->n_beyond == 0;
}

const fd_node_finding *fd_first_layer(const fd_graph *graph, const fd_attribution *of) {
    const fd_node_finding *first = &of->first;
    for (int32_t i = 0; of->found && i < first->node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        if (f->finding == FD_FOUND_NOTHING || !fd_fault_same_kind(&graph->nodes[i], &graph->nodes[first->node]))
            continue;
        bool same_phase = (f->step > 0) == (first->step > 0);
        if (same_phase || by_what_is_left(first) || by_what_is_left(f)) return f;
    }
    return NULL;
}

/* The same mistake in the layer of `node`. */
static void move(fd_explain_fit *fit, const fd_graph *graph, const fd_node *node) {
    fd_hypothesis there;
    if (!fit->at[0] || !fd_hypothesis_at(&fit->hypothesis, graph, node, &there) || there.node < 0) return;
    fit->hypothesis = there;
    snprintf(fit->at, sizeof fit->at, "%s", graph->nodes[there.node].name);
}

fd_code fd_begin_at_first_layer(const fd_diagnose_options *ask, fd_attribution *of, fd_explanation *e, fd_error *err) {
    const fd_graph *graph = ask->graph;
    const fd_node_finding *place = fd_first_layer(graph, of), was = of->first;
    fd_diagnose_options here = *ask, there = *ask;
    fd_explanation earlier;
    bool fits = true;
    if (!place) return FD_OK;
    here.finding = &was;
    there.finding = place;
    if (e->named) {
        FD_TRY(fd_diagnose_fits(&there, &e->remaining[0].hypothesis, &fits, err));
        if (!fits) return FD_OK;
        for (int32_t i = 0; i < e->n_remaining && i < FD_MAX_REMAINING; i++)
            move(&e->remaining[i], graph, &graph->nodes[place->node]);
        move(&e->runner_up, graph, &graph->nodes[place->node]);
    } else {
        FD_TRY(fd_diagnose(&there, &earlier, err));
        fits = earlier.named;
        if (fits) FD_TRY(fd_diagnose_fits(&here, &earlier.remaining[0].hypothesis, &fits, err));
        if (fits) *e = earlier;
    }
    of->first = *place;
    of->next = was;
    return FD_OK;
}

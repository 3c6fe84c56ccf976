#include "compare/diagnose/mixed.h"

#include "faults/faults.h"

/* Ops whose results engines keep in a type of their own. A norm or softmax in 16 bits amid binary32 is a bug as a rule. */
static bool may_be_kept_so(fd_op op) {
    return op == FD_OP_MATMUL || op == FD_OP_EXPERT_MATMUL || op == FD_OP_KV_WRITE || op == FD_OP_EMBED;
}

/* Each tensor of the node's kind that was judged departs. */
static bool whole_kind(const fd_graph *graph, const fd_attribution *of, int32_t node) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        bool judged = of->z[i] >= 0 && of->introduced[i].finding == FD_FOUND_NOTHING;
        if (judged && fd_fault_same_kind(&graph->nodes[i], &graph->nodes[node])) return false;
    }
    return true;
}

bool fd_may_be_mixed_class(const fd_graph *graph, const fd_attribution *of) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        bool may = may_be_kept_so(graph->nodes[i].op) || f->span_first != f->node; /* then it may lie in between */
        if (f->finding != FD_FOUND_NOTHING && !(may && whole_kind(graph, of, i))) return false;
    }
    return of->found;
}

fd_code fd_is_mixed_class(const fd_diagnose_options *ask, const fd_attribution *of, const fd_explanation *e, bool *yes,
                          fd_error *err) {
    const fd_node *nodes = ask->graph->nodes;
    fd_hypothesis h = e->remaining[0].hypothesis;
    *yes = false;
    if (!e->named || h.guess != FD_GUESS_ROUNDED || h.which > 0) return FD_OK;
    if (!may_be_kept_so(h.node >= 0 ? nodes[h.node].op : (fd_op)(h.ops - 1))) return FD_OK;
    for (int32_t i = 0; i < ask->graph->n_node; i++) {
        fd_diagnose_options there = *ask;
        bool fits = true;
        there.finding = &of->introduced[i];
        if (h.node >= 0 && of->first.span_first == of->first.node) h.node = i;
        if (of->introduced[i].finding != FD_FOUND_NOTHING) FD_TRY(fd_diagnose_fits(&there, &h, &fits, err));
        if (!fits) return FD_OK;
    }
    *yes = true;
    return FD_OK;
}

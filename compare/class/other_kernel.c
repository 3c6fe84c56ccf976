#include "compare/class/other_kernel.h"

#include <math.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/class/mixed.h"
#include "compare/class/undirected.h"

/* bfloat16 factors leave 2⁻⁸ by √3 of a product, sums in binary16 of a few numbers an eighth of that; through a norm or two, twice. */
#define MOST_ERROR 0x1p-7
/* TF32 that is cut off leaves 2⁻¹⁰ of scores, sums in binary16 a quarter of that of the weighted sum. */
#define MOST_OF_ATTENTION 0x1p-9

static bool is_float_product(const fd_graph *graph, const fd_node *node) {
    return fd_dot_is_product(node->op) && !fd_dtype_get(graph->weights[node->weight[0]].dtype)->is_quantised;
}

static bool has_hidden_product(const fd_diagnose_options *ask, const fd_node_finding *f) {
    bool has = false;
    for (int32_t i = f->span_first; i < f->node && !has; i++)
        has = is_float_product(ask->graph, &ask->graph->nodes[i]) &&
              !fd_trace_has_data(ask->trace, ask->graph->nodes[i].name);
    return has;
}

/* Scores and the weighted sum of V meet no weights, and kernels of these are chosen as well: in all layers alike. */
static bool is_attention(const fd_graph *graph, const fd_attribution *of, const fd_node_finding *f) {
    const uint32_t op = graph->nodes[f->node].op;
    return (op == FD_OP_ATTN_SCORES || op == FD_OP_ATTN_MIX) && fd_departs_in_all_layers(graph, of, f);
}

fd_code fd_find_other_kernel(const fd_diagnose_options *ask, const fd_attribution *of, double *error, fd_error *err) {
    const fd_numerics_class *c = ask->numerics;
    double most = 0;
    *error = 0;
    if (!c->replays_inputs || c->int8_rows || c->plain_products || c->own_block > 0) return FD_OK;
    for (int32_t i = 0; i < ask->graph->n_node; i++) {
        const fd_node_finding *f = &of->introduced[i];
        if (f->finding == FD_FOUND_NOTHING) continue;
        const bool attention = is_attention(ask->graph, of, f);
        fd_undirected errors;
        if (!isfinite(f->z) || (!attention && !has_hidden_product(ask, f))) return FD_OK;
        fd_diagnose_options there = *ask;
        there.finding = f;
        FD_TRY(fd_ask_undirected(&there, &errors, err));
        const bool small = errors.error > 0 && errors.error <= (attention ? MOST_OF_ATTENTION : MOST_ERROR);
        if (!small || !fd_is_undirected(&errors)) return FD_OK;
        most = fmax(most, errors.error);
    }
    *error = most;
    return FD_OK;
}

#include "compare/explain/judged_rows.h"

#include <math.h>
#include <stdlib.h>

#include "compare/bounds/dot_inputs.h"

fd_judged_rows fd_judged_rows_of(const fd_trial *t) {
    const fd_explain_request *r = t->all.request;
    return (fd_judged_rows){.r = r,
                            .plain = &t->all.plain,
                            .node = r->args.node,
                            .width = fd_node_row_stride(r->args.node, r->args.n_kv),
                            .first = r->n_unjudged,
                            .n = r->args.n_pos};
}

fd_code fd_judged_bias(const fd_trial *t, float **out, fd_error *err) {
    const fd_op_args *args = &t->all.request->args;
    const int32_t id = args->node->op == FD_OP_MATMUL ? args->node->weight[1] : -1;
    const fd_weight *weight = id < 0 ? NULL : &args->graph->weights[id];
    *out = NULL;
    if (!weight || weight->n_row * weight->n_col != fd_node_width(args->node)) return FD_OK;
    *out = malloc(sizeof **out * (size_t)(weight->n_row * weight->n_col));
    if (!*out) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", args->node->name);
    fd_dot_widen_weight(FD_DOT_AS_IS, weight, *out);
    return FD_OK;
}

bool fd_judged_is(const fd_judged_rows *j, int64_t i, float x) {
    const double tau = j->plain->tau ? j->plain->tau[i] : 0;
    return fabs((double)j->r->output[i] - (double)x) <= tau;
}

bool fd_judged_is_that_of(const fd_judged_rows *j, int64_t i, int64_t right) {
    const double tau = j->plain->tau ? j->plain->tau[right] : 0;
    const double moved = j->bias ? (double)j->bias[i % j->width] - (double)j->bias[right % j->width] : 0;
    return fabs((double)j->r->output[i] - (double)j->plain->rows[right] - moved) <= tau;
}

bool fd_judged_is_right(const fd_judged_rows *j, int64_t i) {
    return fd_judged_is_that_of(j, i, i);
}

bool fd_activates_products(const fd_graph *graph, const fd_node *node) {
    const fd_node *of = node->input[0] < 0 ? NULL : &graph->nodes[node->input[0]];
    return node->layer >= 0 && of && of->op == FD_OP_MATMUL && fd_hypothesis_has_function(node->op);
}

bool fd_judged_columns(const fd_judged_rows *j, int32_t *first, int32_t *end) {
    *first = *end = 0;
    for (int64_t i = j->first * j->width; i < j->n * j->width; i++) {
        const int32_t column = (int32_t)(i % j->width);
        if (fd_judged_is_right(j, i)) continue;
        if (*end == 0 || column < *first) *first = column;
        if (column >= *end) *end = column + 1;
    }
    return *end > 0;
}

fd_judged_rows fd_judged_departing(const fd_trial *t) {
    fd_judged_rows j = fd_judged_rows_of(t);
    int64_t i = j.first * j.width;
    while (i < j.n * j.width && fd_judged_is_right(&j, i)) i++;
    j.first = (int32_t)(i / j.width);
    return j;
}

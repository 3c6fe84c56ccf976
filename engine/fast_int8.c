/* Which products of a single token multiply int8 blocks of activations with quantised weights, as q8act does
 * (docs/numerics.md): those that are faster so. Routers stay exact, and what follows the last layer, of which a traced
 * prompt shows every row. */
#include <stdlib.h>

#include "engine/fast.h"

/* The products of an item run as one, so they are chosen as one. */
static bool takes_int8(const fd_launch_context *queue, const fd_graph *graph, const fd_item *item, fd_int8 where,
                       const bool *rows) {
    const fd_weight *first = &graph->weights[graph->nodes[item->matvec.matmul[0]].weight[0]];
    int64_t n_row = 0;
    for (int i = 0; i < item->matvec.n_matmul; i++) {
        int32_t id = item->matvec.matmul[i];
        if (!rows[id] || fd_fast_feeds_choice(graph, id)) return false;
        n_row += graph->weights[graph->nodes[id].weight[0]].n_row;
    }
    if (!fd_q8_can(first->dtype)) return false;
    return where == FD_INT8_ALWAYS || fd_q8_matvec_is_faster(queue, first->dtype, n_row, first->n_col);
}

fd_code fd_fast_choose_int8(const fd_launch_context *queue, const fd_graph *graph, fd_int8 where, bool *int8,
                            fd_error *err) {
    fd_plan step;
    if (where == FD_INT8_NEVER) return FD_OK;
    bool *rows = calloc((size_t)graph->n_node, sizeof *rows);
    if (!rows) return fd_fail(err, FD_ERR_MEMORY, "plan: out of memory for %d nodes", graph->n_node);
    fd_code code = fd_plan_make_fast(graph, true, &step, err);
    if (code == FD_OK) {
        fd_fast_mark_rows(graph, rows);
        for (int32_t i = 0; i < step.n_item; i++) {
            const fd_item *item = &step.items[i];
            if (item->kind != FD_ITEM_MATVEC || !takes_int8(queue, graph, item, where, rows)) continue;
            for (int k = 0; k < item->matvec.n_matmul; k++) int8[item->matvec.matmul[k]] = true;
        }
        fd_plan_free(&step);
    }
    free(rows);
    return code;
}

/* Which products multiply int8 blocks of activations with quantised weights (docs/numerics.md): in q8act all that can, in
 * fast numerics those of a single token that are faster so. There routers stay exact, and what follows the last layer,
 * of which a traced prompt shows every row. */
#include "engine/internal.h"
#include "engine/match.h"
#include "kernels/int8/q8.h"

/* The products of an item run as one, so they are chosen as one. */
static bool is_chosen(const fd_launch_context *ctx, const fd_plan *step, const fd_item *item, fd_int8 where) {
    const fd_graph *graph = step->graph;
    const fd_weight *first = &graph->weights[graph->nodes[item->matmul[0]].weight[0]];
    int64_t n_row = 0;
    for (int i = 0; i < item->n_matmul; i++) {
        int32_t id = item->matmul[i];
        if (!step->all_rows[id] || fd_feeds_choice(graph, id)) return false;
        n_row += graph->weights[graph->nodes[id].weight[0]].n_row;
    }
    if (!fd_q8_can(first->dtype)) return false;
    return where == FD_INT8_ALWAYS || fd_q8_matvec_is_faster(ctx, first->dtype, n_row, first->n_col);
}

void fd_int8_choose_all(const fd_graph *graph, bool *int8) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op == FD_OP_MATMUL || node->op == FD_OP_EXPERT_MATMUL)
            int8[i] = fd_q8_can(graph->weights[node->weight[0]].dtype);
    }
}

void fd_int8_choose_faster(const fd_launch_context *ctx, const fd_plan *step, fd_int8 where, bool *int8) {
    for (int32_t i = 0; i < step->n_item && where != FD_INT8_NEVER; i++) {
        const fd_item *item = &step->items[i];
        if (item->kernel != FD_KERNEL_MATVEC || !is_chosen(ctx, step, item, where)) continue;
        for (int k = 0; k < item->n_matmul; k++) int8[item->matmul[k]] = true;
    }
}

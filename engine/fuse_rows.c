/* Which neighbouring nodes run as one item when there are many rows. Every node's result is kept, so others may read it;
 * none of them may have an override. */
#include "engine/plan.h"

static bool plain(const fd_graph *graph, int32_t id, fd_op op) {
    return id < graph->n_node && graph->nodes[id].op == op && !graph->nodes[id].override;
}

static bool reads(const fd_graph *graph, int32_t id, int32_t input) {
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (graph->nodes[id].input[k] == input) return true;
    return false;
}

/* The next products, as long as they have the same input and type of weight. */
static bool match_products(const fd_graph *graph, int32_t id, fd_item *item) {
    const fd_node *first = &graph->nodes[id];
    *item = (fd_item){.kind = FD_ITEM_PRODUCTS, .node = id, .matvec = {.norm = -1, .add = -1, .silu = -1}};
    for (int32_t i = id; i < graph->n_node && item->matvec.n_matmul < FD_ITEM_MATMULS; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_MATMUL) continue;
        if (node->override || node->input[0] != first->input[0] ||
            graph->weights[node->weight[0]].dtype != graph->weights[first->weight[0]].dtype)
            break;
        item->matvec.matmul[item->matvec.n_matmul++] = i;
    }
    return item->matvec.n_matmul > 1;
}

/* The norm of a whole row. */
static bool match_add_norm(const fd_graph *graph, int32_t id, fd_item *item) {
    const fd_node *add = &graph->nodes[id];
    for (int32_t i = id + 1; i < graph->n_node; i++) {
        const fd_node *norm = &graph->nodes[i];
        if (!reads(graph, i, id) || !plain(graph, i, FD_OP_RMS_NORM)) continue;
        if (norm->n_dim != 1 || add->n_dim != 1 || norm->shape[0] != add->shape[0]) return false;
        *item = (fd_item){.kind = FD_ITEM_ADD_NORM, .node = id, .matvec = {.norm = i}};
        return true;
    }
    return false;
}

bool fd_match_turn(const fd_graph *graph, int32_t id) {
    const fd_node *q = &graph->nodes[id];
    if (!plain(graph, id, FD_OP_ROPE) || !plain(graph, id + 1, FD_OP_ROPE) || !plain(graph, id + 2, FD_OP_KV_WRITE) ||
        !plain(graph, id + 3, FD_OP_KV_WRITE) || q[2].row_offset || q[3].row_offset)
        return false;
    return q[1].input[0] < id && q[2].input[0] == id + 1 && q[3].input[0] < id && q[1].shape[1] == q->shape[1] &&
           q->shape[1] % 2 == 0 && q[3].shape[0] == q[1].shape[0] && q[3].shape[1] == q[1].shape[1];
}

bool fd_match_rows(const fd_graph *graph, int32_t id, bool turn, fd_item *item) {
    fd_item found;
    if (graph->nodes[id].override) return false;
    switch (graph->nodes[id].op) {
    case FD_OP_MATMUL:
        if (!match_products(graph, id, &found)) return false;
        break;
    case FD_OP_ADD:
        if (!match_add_norm(graph, id, &found)) return false;
        break;
    case FD_OP_ROPE:
        if (!turn || !fd_match_turn(graph, id)) return false;
        found = (fd_item){.kind = FD_ITEM_TURN, .node = id};
        break;
    default: return false;
    }
    *item = found;
    return true;
}

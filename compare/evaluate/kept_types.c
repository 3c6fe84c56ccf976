#include "compare/evaluate/kept_types.h"

#include "compare/replay/kv_types.h"

/* The op that reads what the node writes. */
static fd_op reader_of(const fd_graph *graph, const fd_node *node) {
    for (int32_t i = node->id + 1; i < graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (graph->nodes[i].input[k] == node->id) return graph->nodes[i].op;
    return FD_OP_COUNT;
}

uint32_t fd_explain_kv_type(const fd_explain_request *request, const fd_node *node) {
    if (request->k_type == FD_F32 && request->v_type == FD_F32) return FD_F32;
    const fd_op op = node->op == FD_OP_KV_WRITE ? reader_of(request->args.graph, node) : node->op;
    return fd_kept_type_of(op, request->k_type, request->v_type);
}

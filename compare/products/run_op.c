#include "compare/products/run_op.h"

#include <omp.h>

enum {
    MANY = 1 << 20, /* multiply-adds, about 0.2 ms: from here on threads are worth waking */
    OF_STATE = 256, /* that an element of a recurrent op counts for: its state's row */
    OF_ELEMENT = 16 /* and of another op: exponentials, roots */
};

/* Multiply-adds, roughly. */
static int64_t work_of(const fd_op_args *args) {
    const fd_node *node = args->node;
    const int64_t n = args->n_pos * fd_node_row_stride(node, args->n_kv);
    switch (node->op) {
    case FD_OP_MATMUL:
    case FD_OP_EXPERT_MATMUL:
    case FD_OP_HEAD_MATMUL: return n * args->weight[0]->n_col;
    case FD_OP_ATTN_SCORES: return n * args->graph->nodes[node->input[0]].shape[1];
    case FD_OP_ATTN_MIX: return n * args->n_kv;
    case FD_OP_SSM_SCAN:
    case FD_OP_GATED_DELTA:
    case FD_OP_WKV7: return n * OF_STATE;
    default: return n * OF_ELEMENT;
    }
}

void fd_call_op(fd_op_fn op, fd_numerics numerics, const fd_op_args *args) {
    const int n_thread = omp_get_max_threads();
    const bool alone = n_thread > 1 && work_of(args) < MANY;
    if (alone) omp_set_num_threads(1);
    op(numerics, args);
    if (alone) omp_set_num_threads(n_thread);
}

/* Which ops processes share, and where their items lie in what comes out. */
#include "reference_cpu/executor.h"

/* Products by output rows, attention by heads: together all but a few percent of a pass. What is left every process computes for
 * itself, which is cheaper than asking. */
bool fd_ref_shares(fd_op op) {
    return op == FD_OP_MATMUL || op == FD_OP_EXPERT_MATMUL || op == FD_OP_HEAD_MATMUL || op == FD_OP_ATTN_SCORES ||
           op == FD_OP_ATTN_SOFTMAX || op == FD_OP_ATTN_MIX;
}

fd_code fd_ref_gather(fd_peers *peers, const fd_ref_task *task, size_t real_size, fd_error *err) {
    const fd_op_args *args = &task->args;
    const fd_node *node = args->node;
    fd_shared_rows rows = {.data = args->out,
                           .n_block = args->n_pos,
                           .n_item = task->n_total,
                           .item_bytes = real_size,
                           .name = node->name};
    if (node->op == FD_OP_EXPERT_MATMUL) rows.n_block = (int64_t)args->n_pos * node->shape[0];
    if (node->op == FD_OP_ATTN_SCORES || node->op == FD_OP_ATTN_SOFTMAX || node->op == FD_OP_ATTN_MIX) {
        rows.n_block = 1; /* an item is a head of a position, one after the other */
        rows.item_bytes = real_size * (size_t)(node->over_kv ? args->n_kv : node->shape[1]);
    }
    return peers->gather(peers, &rows, err);
}

/* MATMULs of rows: by which kernels. */
#include "engine/edges.h"
#include "engine/pass.h"
#include "kernels/matmul/few_f16.h"

bool fd_few_f16_takes(const fd_graph *graph, int32_t id) {
    const fd_node *node = &graph->nodes[id];
    return node->op == FD_OP_MATMUL && graph->weights[node->weight[0]].dtype == FD_F16 && node->layer >= 0 &&
           !fd_feeds_choice(graph, id);
}

fd_code fd_launch_products(fd_pass *pass, int32_t id, bool int8, const fd_matmul *in, fd_error *err) {
    if (int8) return fd_launch_int8_products(pass, fd_pass_node(pass, id)->input[0], in, err);
    if (pass->halves && fd_few_f16_takes(pass->plan->graph, id))
        return fd_launch_few_f16(&pass->ctx, in, pass->halves, 0, err);
    return fd_launch_matmul(&pass->ctx, in, err);
}

/* What fast numerics hold beside an engine's weights, caches and tables. */
#include <stdlib.h>

#include "engine/pass.h"
#include "kernels/attention/attention_f16.h"
#include "kernels/elementwise/rows_f16.h"

size_t fd_fast_weight_bytes(const fd_plan *rows) {
    size_t most = 0;
    for (int32_t i = 0; i < rows->n_item; i++) {
        const fd_item *item = &rows->items[i];
        if (item->kernel != FD_KERNEL_GEMM_F16 && item->kernel != FD_KERNEL_GEMM_ADD_F16) continue;
        const fd_weight *w = &rows->graph->weights[rows->graph->nodes[item->matmul[0]].weight[0]];
        fd_device_matrix shape = {.dtype = w->dtype, .n_col = w->n_col};
        size_t bytes = sizeof(uint16_t) * (size_t)w->n_row * (size_t)fd_f16_row_stride(&shape);
        if (w->dtype != FD_F16 && bytes > most) most = bytes;
    }
    return most;
}

size_t fd_fast_scratch_bytes(const fd_graph *graph, const fd_launch_context *ctx, int32_t n_ctx, int32_t n_seq) {
    size_t most = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_ATTN_MIX) continue;
        fd_attn_f16 shape = {.n_head = node->shape[0],
                             .n_head_kv = graph->nodes[node->input[1]].shape[0],
                             .n_head_kv_whole = fd_split_whole(graph, node->input[1])->shape[0],
                             .head_dim = node->shape[1],
                             .n_ctx = n_ctx,
                             .n_seq = n_seq};
        size_t bytes = fd_attn_decode_f16_scratch(ctx, &shape);
        if (bytes > most) most = bytes;
    }
    return fd_align(most) * (size_t)n_seq;
}

fd_code fd_fast_setup(fd_engine *e, fd_error *err) {
    fd_fast *fast = e->fast;
    FD_TRY(fd_cublas_open(e->device.ctx.stream, &fast->cublas, err));
    FD_TRY(fd_device_reserve(&fast->weights, fd_fast_weight_bytes(&e->prompt.rows), "a matrix in binary16", err));
    size_t scratch = fd_fast_scratch_bytes(e->exec.graph, &e->device.ctx, e->exec.n_ctx, e->exec.n_seq);
    FD_TRY(fd_device_alloc(&fast->scratch, scratch, "attention", err));
    return fd_cuda_check(cudaMemset(fast->scratch.data, 0, scratch), "attention", err); /* counters of arrivals */
}

void fd_fast_release(fd_engine *e) {
    if (!e->fast) return;
    fd_device_free(&e->fast->inner);
    fd_device_free(&e->fast->mixed);
    fd_device_free(&e->fast->attended);
    for (int i = 0; i < 2; i++) fd_device_free(&e->fast->whole[i]);
    fd_device_free(&e->fast->weights);
    fd_device_free(&e->fast->scratch);
    fd_cublas_close(e->fast->cublas);
    free(e->fast);
    e->fast = NULL;
}

fd_code fd_fast_reserve_inner(const fd_pass *pass, fd_error *err) {
    fd_fast *fast = pass->engine->fast;
    const fd_graph *graph = pass->plan->graph;
    size_t inner = 0, mixed = 0, attended = 0, whole = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i], *all = fd_split_whole(graph, i);
        if (!fd_observe_wants(pass->engine, i)) continue;
        size_t together = (size_t)fd_pass_row_bytes(pass, all) * (size_t)pass->n_tok;
        if (all != node && together > whole) whole = together;
        if (pass->plan->slot_of[FD_REAL][i] >= 0) continue;
        size_t bytes = (size_t)fd_pass_row_bytes(pass, node) * (size_t)pass->n_tok;
        if (bytes > inner) inner = bytes;
        if (node->op == FD_OP_ATTN_MIX && bytes > mixed) mixed = bytes;
        if (node->op == FD_OP_ATTN_SOFTMAX && bytes > attended) attended = bytes;
    }
    for (int i = 0; i < 2; i++) FD_TRY(fd_device_reserve(&fast->whole[i], whole, "an observed tensor", err));
    FD_TRY(fd_device_reserve(&fast->inner, inner, "an observed tensor", err));
    FD_TRY(fd_device_reserve(&fast->mixed, mixed, "an observed tensor", err));
    return fd_device_reserve(&fast->attended, attended, "an observed tensor", err);
}

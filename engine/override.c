/* A node whose op a fault replaces: its inputs are copied to the host, the fault computes, and its output is copied back.
 * Slow, and right. */
#include <stdlib.h>
#include <string.h>

#include "engine/pass.h"

static fd_code download(const fd_pass *pass, const void *device, size_t size, void **host, fd_error *err) {
    *host = malloc(size);
    if (!*host) return fd_fail(err, FD_ERR_MEMORY, "override: out of memory for %zu bytes", size);
    FD_TRY(
        fd_cuda_check(cudaMemcpyAsync(*host, device, size, cudaMemcpyDeviceToHost, pass->ctx.stream), "download", err));
    return fd_engine_wait(pass->engine, NULL, "download", err);
}

/* Bytes of the node's tensor in this pass: its rows, or the cache up to position `n_pos`. */
static size_t tensor_bytes(const fd_pass *pass, const fd_node *node, int32_t rows) {
    return (size_t)fd_pass_row_bytes(pass, node) * (size_t)rows;
}

static fd_code compute(const fd_pass *pass, const fd_node *node, fd_op_args *args, void **host, fd_error *err) {
    const fd_graph *graph = pass->engine->exec.graph;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        if (node->input[k] < 0) continue;
        const fd_node *input = &graph->nodes[node->input[k]];
        size_t size = tensor_bytes(pass, input, input->op == FD_OP_KV_WRITE ? pass->n_kv : args->n_pos);
        FD_TRY(download(pass, fd_pass_input(pass, node->id, input->id), size, &host[k], err));
        args->in[k] = host[k];
    }
    for (int k = 0; k < FD_MAX_WEIGHTS; k++)
        if (node->weight[k] >= 0) args->weight[k] = &graph->weights[node->weight[k]];
    if (node->op == FD_OP_ROPE) {
        args->rope_cos = pass->engine->state.ropes[pass->engine->state.rope_of[node->id]].host_cosine;
        args->rope_sin = pass->engine->state.ropes[pass->engine->state.rope_of[node->id]].host_sine;
    }
    /* What a fault leaves unwritten keeps its old contents, as in a buffer of its own. */
    float *out = fd_pass_tensor(pass, node->id);
    size_t size = tensor_bytes(pass, node, node->op == FD_OP_KV_WRITE ? pass->engine->exec.n_ctx : args->n_pos);
    FD_TRY(download(pass, out, size, &host[FD_MAX_INPUTS], err));
    args->out = host[FD_MAX_INPUTS];
    node->override(args);
    FD_TRY(
        fd_cuda_check(cudaMemcpyAsync(out, args->out, size, cudaMemcpyHostToDevice, pass->ctx.stream), "upload", err));
    return fd_engine_wait(pass->engine, NULL, "upload", err);
}

fd_code fd_run_override(const fd_pass *pass, int32_t id, fd_error *err) {
    const fd_node *node = &pass->engine->exec.graph->nodes[id];
    int32_t skip = fd_pass_rows(pass, id) == FD_ROWS_LAST ? pass->n_tok - 1 : 0;
    fd_op_args args = {.graph = pass->engine->exec.graph,
                       .node = node,
                       .pos0 = pass->pos0 + skip,
                       .n_pos = pass->n_tok - skip,
                       .n_kv = pass->n_kv,
                       .tokens = pass->tokens + skip,
                       .n_ctx = pass->engine->exec.n_ctx};
    void *host[FD_MAX_INPUTS + 1] = {0};
    fd_code code = compute(pass, node, &args, host, err);
    for (int k = 0; k <= FD_MAX_INPUTS; k++) free(host[k]);
    return code;
}

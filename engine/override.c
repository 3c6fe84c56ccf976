/* A node whose op a fault replaces: its inputs come to the host, the fault computes, the output goes back. Slow, and
 * right. */
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"

static fd_code download(const fd_engine *engine, const void *device, size_t size, void **host, fd_error *err) {
    *host = malloc(size);
    if (!*host) return fd_fail(err, FD_ERR_MEMORY, "override: out of memory for %zu bytes", size);
    FD_TRY(fd_cuda_check(cudaMemcpyAsync(*host, device, size, cudaMemcpyDeviceToHost, engine->queue.stream), "download",
                         err));
    return fd_cuda_check(cudaStreamSynchronize(engine->queue.stream), "download", err);
}

/* Bytes of the node's tensor in this pass: its rows, or the cache up to position `n_pos`. */
static size_t tensor_bytes(const fd_run *run, const fd_node *node, int32_t rows) {
    return (size_t)fd_run_row_bytes(run, node) * (size_t)rows;
}

static fd_code compute(const fd_engine *engine, const fd_run *run, const fd_node *node, fd_op_args *args, void **host,
                       fd_error *err) {
    const fd_graph *graph = engine->exec.graph;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        if (node->input[k] < 0) continue;
        const fd_node *input = &graph->nodes[node->input[k]];
        size_t size = tensor_bytes(run, input, input->op == FD_OP_KV_WRITE ? run->n_kv : args->n_pos);
        FD_TRY(download(engine, fd_run_input(engine, run, node->id, input->id), size, &host[k], err));
        args->in[k] = host[k];
    }
    for (int k = 0; k < FD_MAX_WEIGHTS; k++)
        if (node->weight[k] >= 0) args->weight[k] = &graph->weights[node->weight[k]];
    if (node->op == FD_OP_ROPE) {
        args->rope_cos = engine->ropes[engine->rope_of[node->id]].host_cosine;
        args->rope_sin = engine->ropes[engine->rope_of[node->id]].host_sine;
    }
    /* What a fault leaves unwritten keeps what lay there, as in a buffer of its own. */
    float *out = fd_run_tensor(engine, run, node->id);
    size_t size = tensor_bytes(run, node, node->op == FD_OP_KV_WRITE ? engine->exec.n_ctx : args->n_pos);
    FD_TRY(download(engine, out, size, &host[FD_MAX_INPUTS], err));
    args->out = host[FD_MAX_INPUTS];
    node->override(args);
    FD_TRY(fd_cuda_check(cudaMemcpyAsync(out, args->out, size, cudaMemcpyHostToDevice, engine->queue.stream), "upload",
                         err));
    return fd_cuda_check(cudaStreamSynchronize(engine->queue.stream), "upload", err);
}

fd_code fd_run_override(const fd_engine *engine, const fd_run *run, int32_t id, fd_error *err) {
    const fd_node *node = &engine->exec.graph->nodes[id];
    int32_t skip = fd_run_rows(engine, run, id) == FD_ROWS_LAST ? run->n_tok - 1 : 0;
    fd_op_args args = {.graph = engine->exec.graph,
                       .node = node,
                       .pos0 = run->pos0 + skip,
                       .n_pos = run->n_tok - skip,
                       .n_kv = run->n_kv,
                       .tokens = run->tokens + skip,
                       .n_ctx = engine->exec.n_ctx};
    void *host[FD_MAX_INPUTS + 1] = {0};
    fd_code code = compute(engine, run, node, &args, host, err);
    for (int k = 0; k <= FD_MAX_INPUTS; k++) free(host[k]);
    return code == FD_OK ? FD_OK : fd_error_prefix(err, "node %s", node->name);
}

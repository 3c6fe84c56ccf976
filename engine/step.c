/* One token without an observer. The whole step is one CUDA graph: its kernels read token and position from device
 * memory, and their grids are sized for the whole context, so the same graph serves every position. */
#include "engine/internal.h"

static fd_code enqueue(fd_engine *engine, fd_error *err) {
    fd_queue queue = engine->queue;
    queue.overlap = engine->overlap;
    fd_run run = {.plan = &engine->step,
                  .slots = engine->step_slots,
                  .queue = &queue,
                  .n_tok = 1,
                  .n_kv = engine->exec.n_ctx,
                  .inputs = engine->inputs,
                  .tail = FD_ROWS_ALL};
    FD_TRY(
        fd_cuda_check(cudaMemcpyAsync(engine->inputs, engine->inputs_host.data, sizeof(int32_t) * (FD_INPUT_TOKENS + 1),
                                      cudaMemcpyHostToDevice, engine->queue.stream),
                      "token upload", err));
    return fd_run_plan(engine, &run, NULL, err);
}

static fd_code capture(fd_engine *engine, fd_error *err) {
    cudaGraph_t graph = NULL;
    FD_TRY(fd_cuda_check(cudaStreamBeginCapture(engine->queue.stream, cudaStreamCaptureModeThreadLocal),
                         "graph capture", err));
    fd_code code = enqueue(engine, err);
    /* Ended in any case: a stream left capturing refuses everything. */
    cudaError_t ended = cudaStreamEndCapture(engine->queue.stream, &graph);
    if (code == FD_OK) code = fd_cuda_check(ended, "graph capture", err);
    if (code == FD_OK) {
        size_t n = 0;
        code = fd_cuda_check(cudaGraphGetNodes(graph, NULL, &n), "graph nodes", err);
        engine->graph_nodes = (int32_t)n;
    }
    if (code == FD_OK)
        code = fd_cuda_check(cudaGraphInstantiate(&engine->step_graph, graph, 0), "graph instantiation", err);
    if (graph) (void)cudaGraphDestroy(graph);
    return code;
}

fd_code fd_engine_step(fd_engine *engine, int32_t token, int32_t pos, fd_error *err) {
    int32_t *inputs = engine->inputs_host.data;
    inputs[FD_INPUT_FIRST] = inputs[FD_INPUT_LAST] = pos;
    inputs[FD_INPUT_TOKENS] = token;
    if (engine->step_warm && !engine->no_graph && !engine->step_graph) FD_TRY(capture(engine, err));
    if (engine->step_graph)
        return fd_cuda_check(cudaGraphLaunch(engine->step_graph, engine->queue.stream), "graph launch", err);
    FD_TRY(enqueue(engine, err));
    engine->step_warm = true;
    return FD_OK;
}

/* One token without an observer. The whole step is one persistent kernel where every item of the plan has a place in
 * it and that is faster; else one CUDA graph: its kernels read token and position from device memory, and their grids do
 * not depend on the position, so that one graph serves the first positions and one all others. */
#include "engine/internal.h"

static fd_run step_run(const fd_engine *engine, const fd_queue *queue) {
    return (fd_run){.plan = &engine->step,
                    .slots = engine->step_slots,
                    .queue = queue,
                    .n_tok = 1,
                    .n_kv = engine->exec.n_ctx,
                    .inputs = engine->inputs,
                    .tail = FD_ROWS_ALL};
}

fd_code fd_engine_make_persistent(fd_engine *engine, fd_error *err) {
    fd_step *step;
    fd_error why = {0};
    fd_run run = step_run(engine, &engine->queue);
    fd_code code = fd_step_new(&engine->queue, engine->step.n_item, &step, &why);
    for (int32_t i = 0; code == FD_OK && i < engine->step.n_item; i++)
        code = fd_add_item(engine, &run, &engine->step.items[i], step, &why);
    if (code == FD_OK) code = fd_step_finish(step, &why);
    if (code == FD_OK) {
        engine->persistent = step;
        return FD_OK;
    }
    fd_step_free(step);
    if (code == FD_ERR_UNSUPPORTED) return FD_OK; /* the CUDA graph does it */
    *err = why;
    return code;
}

static fd_code enqueue(fd_engine *engine, bool near, fd_error *err) {
    fd_queue queue = engine->queue;
    queue.overlap = engine->overlap;
    fd_run run = step_run(engine, &queue);
    run.near = near;
    FD_TRY(
        fd_cuda_check(cudaMemcpyAsync(engine->inputs, engine->inputs_host.data, sizeof(int32_t) * (FD_INPUT_TOKENS + 1),
                                      cudaMemcpyHostToDevice, engine->queue.stream),
                      "token upload", err));
    return fd_run_plan(engine, &run, NULL, err);
}

static fd_code capture(fd_engine *engine, bool near, fd_error *err) {
    cudaGraph_t graph = NULL;
    FD_TRY(fd_cuda_check(cudaStreamBeginCapture(engine->queue.stream, cudaStreamCaptureModeThreadLocal),
                         "graph capture", err));
    fd_code code = enqueue(engine, near, err);
    /* Ended in any case: a stream left capturing refuses everything. */
    cudaError_t ended = cudaStreamEndCapture(engine->queue.stream, &graph);
    if (code == FD_OK) code = fd_cuda_check(ended, "graph capture", err);
    if (code == FD_OK)
        code = fd_cuda_check(cudaGraphInstantiate(&engine->graphs[near].exec, graph, 0), "graph instantiation", err);
    if (graph) (void)cudaGraphDestroy(graph);
    return code;
}

fd_code fd_engine_step(fd_engine *engine, int32_t token, int32_t pos, fd_error *err) {
    if (engine->persistent && pos >= engine->persistent_from && pos < fd_step_positions(engine->persistent))
        return fd_launch_step(&engine->queue, engine->persistent, token, pos, err);
    bool near = pos < FD_ATTENTION_NEAR;
    fd_step_graph *graph = &engine->graphs[near];
    int32_t *inputs = engine->inputs_host.data;
    inputs[FD_INPUT_FIRST] = inputs[FD_INPUT_LAST] = pos;
    inputs[FD_INPUT_TOKENS] = token;
    if (graph->warm && !engine->no_graph && !graph->exec) FD_TRY(capture(engine, near, err));
    if (graph->exec) return fd_cuda_check(cudaGraphLaunch(graph->exec, engine->queue.stream), "graph launch", err);
    FD_TRY(enqueue(engine, near, err));
    graph->warm = true;
    return FD_OK;
}

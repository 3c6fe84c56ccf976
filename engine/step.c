/* One token without an observer, as one CUDA graph: its kernels read token and position from device memory, and their
 * grids do not depend on the position, so that one graph serves the first positions and one all others. */
#include "engine/internal.h"

static fd_run step_run(const fd_engine *engine, const fd_launch_context *queue) {
    return (fd_run){.plan = &engine->step,
                    .slots = engine->step_slots,
                    .queue = queue,
                    .n_tok = 1,
                    .n_kv = engine->exec.n_ctx,
                    .inputs = engine->inputs,
                    .tail = FD_ROWS_ALL};
}

static fd_code enqueue(fd_engine *engine, bool sampled, bool near, fd_error *err) {
    fd_launch_context queue = engine->queue;
    queue.overlap = engine->overlap;
    fd_run run = step_run(engine, &queue);
    run.near = near;
    if (!sampled)
        FD_TRY(fd_cuda_check(cudaMemcpyAsync(engine->inputs, engine->inputs_host.data,
                                             sizeof(int32_t) * (FD_INPUT_TOKENS + 1), cudaMemcpyHostToDevice,
                                             engine->queue.stream),
                             "token upload", err));
    FD_TRY(fd_run_plan(engine, &run, NULL, err));
    return sampled ? fd_launch_sampling(engine, &queue, false, 1, err) : FD_OK;
}

fd_code fd_capture_begin(fd_engine *engine, fd_error *err) {
    return fd_cuda_check(cudaStreamBeginCapture(engine->queue.stream, cudaStreamCaptureModeThreadLocal),
                         "graph capture", err);
}

fd_code fd_capture_end(fd_engine *engine, fd_code code, cudaGraphExec_t *out, fd_error *err) {
    cudaGraph_t graph = NULL;
    cudaError_t ended = cudaStreamEndCapture(engine->queue.stream, &graph);
    if (code == FD_OK) code = fd_cuda_check(ended, "graph capture", err);
    if (code == FD_OK) code = fd_cuda_check(cudaGraphInstantiate(out, graph, 0), "graph instantiation", err);
    if (graph) (void)cudaGraphDestroy(graph);
    return code;
}

static fd_code capture(fd_engine *engine, bool sampled, bool near, fd_error *err) {
    FD_TRY(fd_capture_begin(engine, err));
    return fd_capture_end(engine, enqueue(engine, sampled, near, err), &engine->graphs[sampled][near].exec, err);
}

static fd_code run_graph(fd_engine *engine, bool sampled, int32_t pos, fd_error *err) {
    bool near = pos < FD_ATTENTION_SHORT_CONTEXT;
    fd_step_graph *graph = &engine->graphs[sampled][near];
    if (graph->warm && !engine->no_graph && !graph->exec) FD_TRY(capture(engine, sampled, near, err));
    if (graph->exec) return fd_cuda_check(cudaGraphLaunch(graph->exec, engine->queue.stream), "graph launch", err);
    FD_TRY(enqueue(engine, sampled, near, err));
    graph->warm = true;
    return FD_OK;
}

static const float *step_logits(const fd_engine *engine) {
    return engine->step_slots[engine->step.slot_of[engine->exec.graph->n_node - 1]].data;
}

fd_code fd_engine_step(fd_engine *engine, int32_t token, int32_t pos, fd_error *err) {
    engine->logits = step_logits(engine);
    int32_t *inputs = engine->inputs_host.data;
    inputs[FD_INPUT_FIRST] = inputs[FD_INPUT_LAST] = pos;
    inputs[FD_INPUT_SEQUENCE] = engine->exec.sequence;
    inputs[FD_INPUT_TOKENS] = token;
    return run_graph(engine, false, pos, err);
}

fd_code fd_engine_step_sampled(fd_engine *engine, int32_t pos, fd_error *err) {
    engine->logits = step_logits(engine);
    return run_graph(engine, true, pos, err);
}

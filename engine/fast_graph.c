/* An unobserved pass as a CUDA graph, from its second run in a row with as many rows on: small models are bound by
 * launches, and the kernels read tokens and positions from device memory. */
#include "engine/fast.h"

static void forget(fd_fast_graph *graph) {
    if (graph->exec) (void)cudaGraphExecDestroy(graph->exec);
    *graph = (fd_fast_graph){0};
}

void fd_fast_forget_graphs(struct fd_fast *fast) {
    for (int i = 0; i <= FD_ROWS_NONE; i++) forget(&fast->graphs[i]);
}

static fd_code capture(fd_engine *e, const fd_run *run, const fd_fast_plan *plan, cudaGraphExec_t *exec,
                       fd_error *err) {
    cudaGraph_t graph = NULL;
    FD_TRY(
        fd_cuda_check(cudaStreamBeginCapture(e->queue.stream, cudaStreamCaptureModeThreadLocal), "graph capture", err));
    fd_code code = fd_fast_run(e, run, plan, NULL, err);
    /* Ended in any case: a stream left capturing refuses everything. */
    cudaError_t ended = cudaStreamEndCapture(e->queue.stream, &graph);
    if (code == FD_OK) code = fd_cuda_check(ended, "graph capture", err);
    if (code == FD_OK) code = fd_cuda_check(cudaGraphInstantiate(exec, graph, 0), "graph instantiation", err);
    if (graph) (void)cudaGraphDestroy(graph);
    return code;
}

fd_code fd_fast_pass(fd_engine *e, const fd_run *run, const fd_fast_plan *plan, fd_watch *watch, fd_error *err) {
    fd_fast_graph *graph = &e->fast->graphs[run->tail];
    if (watch || e->has_override || e->no_graph || plan != &e->fast->many) return fd_fast_run(e, run, plan, watch, err);
    if (graph->n_tok != run->n_tok || graph->sequence != e->exec.sequence) {
        forget(graph);
        FD_TRY(fd_fast_run(e, run, plan, NULL, err));
        graph->sequence = e->exec.sequence;
        graph->n_tok = run->n_tok; /* its kernels are loaded now, and their attributes set */
        return FD_OK;
    }
    if (!graph->exec) FD_TRY(capture(e, run, plan, &graph->exec, err));
    return fd_cuda_check(cudaGraphLaunch(graph->exec, e->queue.stream), "graph launch", err);
}

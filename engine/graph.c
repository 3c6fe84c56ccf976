#include "engine/graph.h"

#include "engine/pass.h"

void fd_graph_forget(fd_captured *captured) {
    if (captured->exec) (void)cudaGraphExecDestroy(captured->exec);
    *captured = (fd_captured){0};
}

static fd_code capture(fd_pass *pass, cudaGraphExec_t *exec, fd_error *err) {
    cudaGraph_t graph = NULL;
    FD_TRY(fd_cuda_check(cudaStreamBeginCapture(pass->ctx.stream, cudaStreamCaptureModeThreadLocal), "graph capture",
                         err));
    pass->is_captured = true;
    fd_code code = fd_pass_run(pass, err);
    pass->is_captured = false;
    /* Ended in any case: a stream left capturing refuses everything. */
    cudaError_t ended = cudaStreamEndCapture(pass->ctx.stream, &graph);
    if (code == FD_OK) code = fd_cuda_check(ended, "graph capture", err);
    if (code == FD_OK) code = fd_cuda_check(cudaGraphInstantiate(exec, graph, 0), "graph instantiation", err);
    if (graph) (void)cudaGraphDestroy(graph);
    return code;
}

fd_code fd_graph_run(fd_captured *captured, fd_pass *pass, fd_error *err) {
    if (pass->engine->device.no_graph) return fd_pass_run(pass, err);
    if (captured->n_tok != pass->n_tok || captured->sequence != pass->sequence) {
        fd_graph_forget(captured);
        FD_TRY(fd_pass_run(pass, err));
        *captured = (fd_captured){.n_tok = pass->n_tok, .sequence = pass->sequence};
        return FD_OK;
    }
    if (!captured->exec) {
        FD_TRY(capture(pass, &captured->exec, err));
        if (pass->engine->ranks) /* none waits on its device while another makes its graph */
            FD_TRY(fd_ranks_meet(pass->engine->ranks, err));
    }
    return fd_cuda_check(cudaGraphLaunch(captured->exec, pass->ctx.stream), "graph launch", err);
}

#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/devices.h"
#include "engine/internal.h"
#include "kernels/attention/scores_wide.h"
#include "kernels/matmul/matmul.h"

static fd_code flush(fd_exec *exec, fd_error *err) {
    fd_engine *e = (fd_engine *)exec;
    FD_TRY(fd_cuda_check(cudaSetDevice(e->device.id), "device", err));
    return fd_async_flush(e, err);
}

static void reset(fd_exec *exec) {
    fd_engine *e = (fd_engine *)exec;
    (void)cudaSetDevice(e->device.id);
    fd_async_forget(e);
    (void)cudaMemsetAsync(e->state.fixed.data, 0, e->state.cache_bytes, e->device.ctx.stream);
    (void)cudaStreamSynchronize(e->device.ctx.stream);
}

static void destroy(fd_exec *exec) {
    fd_engine *e = (fd_engine *)exec;
    (void)cudaSetDevice(e->device.id);
    if (e->device.ctx.stream) (void)cudaStreamSynchronize(e->device.ctx.stream);
    fd_engine_release(e);
    free(e);
}

static const fd_exec_class engine_class = {
    .forward = fd_engine_forward, .reset = reset, .destroy = destroy, .flush = flush, .generate = fd_engine_generate};
static const fd_exec_class batching_class = {.forward = fd_engine_forward,
                                             .reset = reset,
                                             .destroy = destroy,
                                             .flush = flush,
                                             .generate = fd_engine_generate,
                                             .decode = fd_engine_decode,
                                             .generate_many = fd_engine_generate_many};

bool fd_engine_available(char *why, size_t size) {
    int n = 0;
    cudaError_t status = cudaGetDeviceCount(&n);
    if (status == cudaSuccess && n > 0) return true;
    (void)cudaGetLastError();
    snprintf(why, size, "no CUDA device: %s", status == cudaSuccess ? "none found" : cudaGetErrorString(status));
    return false;
}

int32_t fd_engine_n_device(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
    (void)cudaGetLastError();
    return 0;
}

/* Fast numerics' attention is one kernel; exact's scores have one for wide heads, its mix takes any. */
static fd_code check_graph(const fd_graph *graph, int32_t n_ctx, bool fast, fd_error *err) {
    const int32_t widest = fast ? (int32_t)FD_ATTENTION_MAX_HEAD_DIM : (int32_t)FD_ATTENTION_WIDEST_HEAD;
    FD_TRY(fd_exec_check_graph(graph, err));
    FD_TRY(fd_graph_check_gpu(graph, err));
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_ATTN_SCORES) continue;
        int32_t head_dim = graph->nodes[node->input[1]].shape[1];
        if (head_dim > widest)
            return fd_fail(err, FD_ERR_UNSUPPORTED, "node %s: heads of %d elements, the GPU kernels take %d at most",
                           node->name, head_dim, widest);
        if (node->chunked && n_ctx > node->window)
            return fd_fail(
                err, FD_ERR_UNSUPPORTED,
                "node %s: chunks of %d positions, the GPU engine takes a context of one; --backend cpu takes %d",
                node->name, node->window, n_ctx);
    }
    return FD_OK;
}

static fd_code open_device(fd_engine *e, const fd_engine_options *options, fd_error *err) {
    int32_t device = options->devices.id[0];
    int driver = 0, runtime = 0;
    struct cudaDeviceProp prop;
    FD_TRY(fd_devices_check(&device, 1, err));
    FD_TRY(fd_cuda_check(cudaSetDevice(device), "device", err));
    FD_TRY(fd_cuda_check(cudaGetDeviceProperties(&prop, device), "device", err));
    FD_TRY(fd_cuda_check(cudaDriverGetVersion(&driver), "driver", err));
    FD_TRY(fd_cuda_check(cudaRuntimeGetVersion(&runtime), "runtime", err));
    snprintf(e->exec.device, sizeof e->exec.device, "%.120s", prop.name);
    snprintf(e->exec.driver, sizeof e->exec.driver, "CUDA driver %d.%d, runtime %d.%d", driver / 1000,
             driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    e->device.id = device;
    e->device.ctx = (fd_launch_context){
        .n_sm = prop.multiProcessorCount, .max_shared = prop.sharedMemPerBlockOptin, .has_clusters = prop.major >= 9};
    e->device.overlap = !options->no_overlap && prop.major >= 9;
    e->sampling.possible = fd_sample_fits(&e->device.ctx, e->exec.graph->hparams.n_vocab);
    return fd_cuda_check(cudaStreamCreateWithFlags(&e->device.ctx.stream, cudaStreamNonBlocking), "stream", err);
}

fd_code fd_engine_memory_free(int32_t device, uint64_t *bytes, int32_t *n_sm, fd_error *err) {
    struct cudaDeviceProp prop;
    size_t free_bytes = 0, total = 0;
    FD_TRY(fd_cuda_check(cudaSetDevice(device), "device", err));
    FD_TRY(fd_cuda_check(cudaMemGetInfo(&free_bytes, &total), "device memory", err));
    FD_TRY(fd_cuda_check(cudaGetDeviceProperties(&prop, device), "device", err));
    *bytes = free_bytes;
    *n_sm = prop.multiProcessorCount;
    return FD_OK;
}

static fd_code check_memory(const fd_graph *graph, const fd_engine_options *options, fd_error *err) {
    uint64_t free_bytes;
    fd_engine_size size = {.n_ctx = options->n_ctx, .n_seq = options->n_seq, .numerics = options->numerics};
    FD_TRY(fd_engine_memory_free(options->devices.id[0], &free_bytes, &size.n_sm, err));
    return fd_engine_memory_fits(graph, &size, (fd_rank_of){0}, free_bytes, err);
}

/* The fused step keeps a whole row in shared memory, and the norm weights beside it. */
static bool rows_fit(const fd_engine *e, const fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_weight; i++)
        if (graph->weights[i].n_row > 1 && !fd_matvec_fits(&e->device.ctx, graph->weights[i].n_col, 2)) return false;
    return true;
}

static fd_code check_options(const fd_graph *graph, const fd_engine_options *options, fd_error *err) {
    if (options->n_ctx < 1)
        return fd_fail(err, FD_ERR_INPUT, "context: %d positions, expected at least 1", options->n_ctx);
    bool fast = options->numerics == FD_NUMERICS_FAST;
    if (!fast && options->numerics != FD_NUMERICS_Q8ACT && options->numerics != FD_NUMERICS_EXACT)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "GPU engine: numerics %s, expected exact, q8act or fast",
                       fd_numerics_name(options->numerics));
    FD_TRY(check_graph(graph, options->n_ctx, fast, err));
    return fast ? fd_plan_check_fast(graph, err) : FD_OK;
}

fd_code fd_engine_begin(const fd_graph *graph, const fd_engine_options *options, fd_engine **out, fd_error *err) {
    bool fast = options->numerics == FD_NUMERICS_FAST;
    fd_engine *e = calloc(1, sizeof *e);
    *out = NULL;
    if (e && fast) e->fast = calloc(1, sizeof *e->fast);
    if (fast && e && !e->fast) {
        free(e);
        e = NULL;
    }
    if (!e) return fd_fail(err, FD_ERR_MEMORY, "engine: out of memory");
    e->exec = (fd_exec){.class_ = &engine_class,
                        .graph = graph,
                        .numerics = options->numerics,
                        .kv_type = fast ? "f16" : NULL,
                        .backend = "gpu",
                        .n_ctx = options->n_ctx,
                        .n_seq = options->n_seq > 1 ? options->n_seq : 1};
    e->device.no_graph = options->no_graph;
    e->observe_by_node = options->observe_by_node;
    e->prompt.may_split = true;
    for (int32_t i = 0; i < graph->n_node; i++) {
        /* A fault may look at the whole batch. */
        if (graph->nodes[i].override) e->has_override = true;
        if (graph->nodes[i].override || graph->nodes[i].row_offset != 0) e->prompt.may_split = false;
    }
    fd_code code = open_device(e, options, err);
    if (code == FD_OK)
        *out = e;
    else
        destroy(&e->exec);
    return code;
}

fd_code fd_engine_complete(fd_engine *e, const fd_engine_options *options, fd_error *err) {
    bool fuse = !options->no_fusion && rows_fit(e, e->exec.graph);
    FD_TRY(fd_engine_setup(e, fuse, options->int8, err));
    if (e->step.batches) e->exec.class_ = &batching_class;
    return FD_OK;
}

fd_code fd_engine_new(const fd_graph *graph, const fd_engine_options *options, fd_exec **out, fd_error *err) {
    fd_engine *e = NULL;
    *out = NULL;
    FD_TRY(check_options(graph, options, err));
    if (options->devices.n > 1 || options->peers) return fd_engine_new_many(graph, options, out, err);
    fd_code code = fd_engine_begin(graph, options, &e, err);
    if (code == FD_OK) code = check_memory(graph, options, err);
    if (code == FD_OK) code = fd_engine_complete(e, options, err);
    if (code == FD_OK)
        *out = &e->exec;
    else if (e)
        destroy(&e->exec);
    return code;
}

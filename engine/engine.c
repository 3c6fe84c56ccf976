#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/budget.h"
#include "engine/pass.h"
#include "kernels/attention/attention.h"
#include "kernels/int8/q8.h"
#include "kernels/matmul/matmul.h"

/* ---- forward ---- */

/* Memory for the pass, then its tokens and positions to the device. */
static fd_code prepare(fd_pass *pass, fd_error *err) {
    fd_engine *e = pass->engine;
    bool moved = false;
    fd_extent extent = {pass->n_tok, pass->n_kv,
                        pass->tail == FD_ROWS_ALL    ? pass->n_tok
                        : pass->tail == FD_ROWS_LAST ? 1
                                                     : 0};
    FD_TRY(fd_slots_reserve(&e->prompt.slots, pass->plan, extent, "a prompt's activations", &moved, err));
    for (int i = 0; i < FD_ROWS_COUNT && moved; i++) fd_graph_forget(&e->prompt.graphs[i]);
    if (e->fast && pass->observe) FD_TRY(fd_fast_reserve_inner(pass, err));
    if (e->exec.numerics == FD_NUMERICS_Q8ACT && pass->n_tok > 1) {
        size_t bytes = fd_q8_scratch_bytes(e->exec.graph, pass->n_tok);
        FD_TRY(fd_device_reserve(&e->prompt.q8_rows, bytes, "int8 activations", err));
        pass->q8_rows = e->prompt.q8_rows.data;
    }
    int32_t *inputs = e->state.inputs_host.data;
    inputs[FD_INPUT_FIRST] = pass->pos0;
    inputs[FD_INPUT_LAST] = pass->pos0 + pass->n_tok - 1;
    inputs[FD_INPUT_SEQUENCE] = e->exec.sequence;
    memcpy(inputs + FD_INPUT_TOKENS, pass->tokens, sizeof *inputs * (size_t)pass->n_tok);
    return fd_cuda_check(cudaMemcpyAsync(e->state.inputs, inputs,
                                         sizeof *inputs * (size_t)(FD_INPUT_TOKENS + pass->n_tok),
                                         cudaMemcpyHostToDevice, pass->ctx.stream),
                         "token upload", err);
}

fd_code fd_copy_logits(fd_engine *e, const float *from, int32_t have, int32_t n_row, float *to, fd_error *err) {
    size_t row = sizeof(float) * (size_t)e->exec.graph->hparams.n_vocab;
    FD_TRY(fd_pinned_reserve(&e->logits_host, row, "logits", err));
    int32_t at_once = (int32_t)(e->logits_host.size / row);
    for (int32_t i = 0, n; i < n_row; i += n) {
        n = n_row - i < at_once ? n_row - i : at_once;
        FD_TRY(fd_cuda_check(cudaMemcpyAsync(e->logits_host.data, (const char *)from + row * (size_t)(have - n_row + i),
                                             row * (size_t)n, cudaMemcpyDeviceToHost, e->device.ctx.stream),
                             "logits", err));
        FD_TRY(fd_cuda_check(cudaStreamSynchronize(e->device.ctx.stream), "logits", err));
        memcpy((char *)to + row * (size_t)i, e->logits_host.data, row * (size_t)n);
    }
    return FD_OK;
}

static fd_code forward_step(fd_engine *e, const fd_batch *batch, fd_error *err) {
    FD_TRY(fd_engine_step_one(e, batch->tokens[0], batch->pos0, false, err));
    if (batch->logits) return fd_copy_logits(e, e->logits, 1, 1, batch->logits, err);
    return fd_cuda_check(cudaStreamSynchronize(e->device.ctx.stream), "decode step", err);
}

/* Rows `done` … `done` + n - 1 of a batch. */
static fd_pass batch_pass(fd_engine *e, const fd_batch *batch, int32_t done, int32_t n) {
    bool observed = e->exec.observer.observe != NULL, last = done + n == batch->n_tok;
    /* Nothing but kernels: they may be fused, and start while the one before drains. */
    bool kernels_only = !observed && !e->has_override && !e->fast;
    bool many = e->fast ? batch->n_tok > 1 : kernels_only && e->prompt.fuses_rows;
    fd_pass pass = {.engine = e,
                    .plan = many ? &e->prompt.rows : &e->prompt.nodes,
                    .slots = &e->prompt.slots,
                    .ctx = e->device.ctx,
                    .tokens = batch->tokens + done,
                    .pos0 = batch->pos0 + done,
                    .n_tok = n,
                    .n_kv = batch->pos0 + done + n,
                    .sequence = e->exec.sequence,
                    .inputs = e->state.inputs,
                    .tail = batch->all_logits || observed                       ? FD_ROWS_ALL
                            : last && (batch->logits != NULL || e->keep_logits) ? FD_ROWS_LAST
                                                                                : FD_ROWS_NONE,
                    .short_context = batch->pos0 + done < FD_ATTENTION_SHORT_CONTEXT,
                    .kernels_only = kernels_only,
                    .observe = observed ? &e->sync : NULL};
    pass.ctx.overlap = e->device.overlap && kernels_only;
    return pass;
}

static fd_code run_pass(fd_pass *pass, fd_error *err) {
    fd_engine *e = pass->engine;
    bool captured = e->fast && pass->plan == &e->prompt.rows && !pass->observe && !e->has_override;
    FD_TRY(prepare(pass, err));
    return captured ? fd_graph_run(&e->prompt.graphs[pass->tail], pass, err) : fd_pass_run(pass, err);
}

static fd_code forward_nodes(fd_engine *e, const fd_batch *batch, fd_error *err) {
    size_t n_vocab = (size_t)e->exec.graph->hparams.n_vocab;
    int32_t longest = !e->prompt.may_split || e->exec.observer.observe ? batch->n_tok
                      : e->fast                                        ? FD_FAST_ROWS
                                : fd_engine_batch_rows(e->exec.graph, e->exec.n_ctx);
    for (int32_t done = 0, n; done < batch->n_tok; done += n) {
        n = batch->n_tok - done < longest ? batch->n_tok - done : longest;
        fd_pass pass = batch_pass(e, batch, done, n);
        FD_TRY(run_pass(&pass, err));
        const float *logits = fd_pass_tensor(&pass, e->exec.graph->n_node - 1);
        int32_t have = pass.tail == FD_ROWS_ALL ? n : 1;
        if (pass.tail != FD_ROWS_NONE) e->logits = logits + (size_t)(have - 1) * n_vocab;
        if (batch->logits && (batch->all_logits || done + n == batch->n_tok))
            FD_TRY(fd_copy_logits(e, logits, have, batch->all_logits ? n : 1,
                                  batch->logits + (batch->all_logits ? (size_t)done * n_vocab : 0), err));
        /* The next pass writes over the pinned tokens. */
        FD_TRY(fd_cuda_check(cudaStreamSynchronize(e->device.ctx.stream), "batch", err));
    }
    return FD_OK;
}

/* With an observer: one token as the fused step, anything else node by node. */
static fd_code forward_observed(fd_engine *e, const fd_batch *batch, fd_error *err) {
    const fd_observer *observer = &e->exec.observer;
    bool async = batch->n_tok == 1 && e->prompt.may_split && !e->observe_by_node && e->exec.n_seq <= 1 &&
                 e->exec.numerics != FD_NUMERICS_FAST;
    if (async) FD_TRY(fd_async_prepare(e, &async, err));
    if (async) return fd_async_forward(e, batch, err);
    FD_TRY(fd_async_flush(e, err));
    if (observer->begin) FD_TRY(observer->begin(observer->user, batch, err));
    FD_TRY(forward_nodes(e, batch, err));
    return observer->end ? observer->end(observer->user, err) : FD_OK;
}

static fd_code forward(fd_exec *exec, const fd_batch *batch, fd_error *err) {
    fd_engine *e = (fd_engine *)exec;
    FD_TRY(fd_cuda_check(cudaSetDevice(e->device.id), "device", err));
    e->sync.n_pending = 0;
    e->sync.used = 0;
    bool step = batch->n_tok == 1 && !e->has_override;
    fd_code code = exec->observer.observe ? forward_observed(e, batch, err)
                   : step                 ? forward_step(e, batch, err)
                                          : forward_nodes(e, batch, err);
    if (code != FD_OK) { /* nothing of a failed call is still under way */
        (void)cudaStreamSynchronize(e->device.ctx.stream);
        fd_async_forget(e);
    }
    return code;
}

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
    .forward = forward, .reset = reset, .destroy = destroy, .flush = flush, .generate = fd_engine_generate};
static const fd_exec_class batching_class = {.forward = forward,
                                             .reset = reset,
                                             .destroy = destroy,
                                             .flush = flush,
                                             .generate = fd_engine_generate,
                                             .decode = fd_engine_decode,
                                             .generate_many = fd_engine_generate_many};

/* ---- making one ---- */

bool fd_engine_available(char *why, size_t size) {
    int n = 0;
    cudaError_t status = cudaGetDeviceCount(&n);
    if (status == cudaSuccess && n > 0) return true;
    (void)cudaGetLastError();
    snprintf(why, size, "no CUDA device: %s", status == cudaSuccess ? "none found" : cudaGetErrorString(status));
    return false;
}

static fd_code check_graph(const fd_graph *graph, fd_error *err) {
    FD_TRY(fd_exec_check_graph(graph, err));
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op == FD_OP_ATTN_MIX && node->shape[1] > FD_ATTENTION_MAX_HEAD_DIM)
            return fd_fail(err, FD_ERR_UNSUPPORTED, "node %s: heads of %d elements, the GPU kernels take %d at most",
                           node->name, node->shape[1], FD_ATTENTION_MAX_HEAD_DIM);
    }
    return FD_OK;
}

static fd_code open_device(fd_engine *e, const fd_engine_options *options, fd_error *err) {
    char why[256];
    int n = 0, driver = 0, runtime = 0;
    struct cudaDeviceProp prop;
    if (!fd_engine_available(why, sizeof why)) return fd_fail(err, FD_ERR_DEVICE, "%s", why);
    FD_TRY(fd_cuda_check(cudaGetDeviceCount(&n), "devices", err));
    if (options->device < 0 || options->device >= n)
        return fd_fail(err, FD_ERR_DEVICE, "CUDA device %d: there are %d", options->device, n);
    FD_TRY(fd_cuda_check(cudaSetDevice(options->device), "device", err));
    FD_TRY(fd_cuda_check(cudaGetDeviceProperties(&prop, options->device), "device", err));
    FD_TRY(fd_cuda_check(cudaDriverGetVersion(&driver), "driver", err));
    FD_TRY(fd_cuda_check(cudaRuntimeGetVersion(&runtime), "runtime", err));
    snprintf(e->exec.device, sizeof e->exec.device, "%.120s", prop.name);
    snprintf(e->exec.driver, sizeof e->exec.driver, "CUDA driver %d.%d, runtime %d.%d", driver / 1000,
             driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    e->device.id = options->device;
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
    FD_TRY(fd_engine_memory_free(options->device, &free_bytes, &size.n_sm, err));
    return fd_engine_memory_fits(graph, &size, free_bytes, err);
}

/* The fused step keeps a whole row in shared memory, and the norm weights beside it. */
static bool rows_fit(const fd_engine *e, const fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_weight; i++)
        if (graph->weights[i].n_row > 1 && !fd_matvec_fits(&e->device.ctx, graph->weights[i].n_col, 2)) return false;
    return true;
}

fd_code fd_engine_new(const fd_graph *graph, const fd_engine_options *options, fd_exec **out, fd_error *err) {
    *out = NULL;
    if (options->n_ctx < 1)
        return fd_fail(err, FD_ERR_INPUT, "context: %d positions, expected at least 1", options->n_ctx);
    bool fast = options->numerics == FD_NUMERICS_FAST, q8act = options->numerics == FD_NUMERICS_Q8ACT;
    if (!fast && !q8act && options->numerics != FD_NUMERICS_EXACT)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "GPU engine: numerics %s, expected exact, q8act or fast",
                       fd_numerics_name(options->numerics));
    FD_TRY(check_graph(graph, err));
    if (fast) FD_TRY(fd_plan_check_fast(graph, err));
    fd_engine *e = calloc(1, sizeof *e);
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
    e->observe_by_node = options->watch_by_node;
    e->prompt.may_split = true;
    for (int32_t i = 0; i < graph->n_node; i++) {
        /* A fault may look at the whole batch. */
        if (graph->nodes[i].override) e->has_override = true;
        if (graph->nodes[i].override || graph->nodes[i].row_offset != 0) e->prompt.may_split = false;
    }
    fd_code code = open_device(e, options, err);
    if (code == FD_OK) code = check_memory(graph, options, err);
    bool fuse = !options->no_fusion && rows_fit(e, graph);
    if (code == FD_OK) code = fd_engine_setup(e, fuse, options->int8, err);
    if (code != FD_OK) {
        destroy(&e->exec);
        return code;
    }
    if (e->step.batches) e->exec.class_ = &batching_class;
    *out = &e->exec;
    return FD_OK;
}

#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/fast.h"
#include "engine/internal.h"

/* ---- forward ---- */

/* Memory for the pass, then its tokens and positions to the device. */
static fd_code prepare(fd_engine *e, fd_run *run, const fd_fast_plan *fast, fd_error *err) {
    if (fast) FD_TRY(fd_fast_reserve(e, run, fast, err));
    for (int32_t s = 0; !fast && s < run->plan->n_slot; s++)
        FD_TRY(fd_device_reserve(&e->node_slots[s], fd_run_slot_bytes(e, run, s), "a prompt's activations", err));
    if (e->exec.numerics == FD_NUMERICS_Q8ACT && run->n_tok > 1) {
        size_t bytes = fd_q8_scratch_bytes(e->exec.graph, run->n_tok);
        FD_TRY(fd_device_reserve(&e->q8_rows, bytes, "int8 activations", err));
        run->q8_rows = e->q8_rows.data;
    }
    int32_t *inputs = e->inputs_host.data;
    inputs[FD_INPUT_FIRST] = run->pos0;
    inputs[FD_INPUT_LAST] = run->pos0 + run->n_tok - 1;
    inputs[FD_INPUT_SEQUENCE] = e->exec.sequence;
    memcpy(inputs + FD_INPUT_TOKENS, run->tokens, sizeof *inputs * (size_t)run->n_tok);
    return fd_cuda_check(cudaMemcpyAsync(e->inputs, inputs, sizeof *inputs * (size_t)(FD_INPUT_TOKENS + run->n_tok),
                                         cudaMemcpyHostToDevice, e->queue.stream),
                         "token upload", err);
}

fd_code fd_copy_logits(fd_engine *e, const float *from, int32_t have, int32_t n_row, float *to, fd_error *err) {
    size_t row = sizeof(float) * (size_t)e->exec.graph->hparams.n_vocab;
    FD_TRY(fd_pinned_reserve(&e->logits_host, row, "logits", err));
    int32_t at_once = (int32_t)(e->logits_host.size / row);
    for (int32_t i = 0, n; i < n_row; i += n) {
        n = n_row - i < at_once ? n_row - i : at_once;
        FD_TRY(fd_cuda_check(cudaMemcpyAsync(e->logits_host.data, (const char *)from + row * (size_t)(have - n_row + i),
                                             row * (size_t)n, cudaMemcpyDeviceToHost, e->queue.stream),
                             "logits", err));
        FD_TRY(fd_cuda_check(cudaStreamSynchronize(e->queue.stream), "logits", err));
        memcpy((char *)to + row * (size_t)i, e->logits_host.data, row * (size_t)n);
    }
    return FD_OK;
}

static fd_code forward_step(fd_engine *e, const fd_batch *batch, fd_error *err) {
    FD_TRY(fd_engine_step(e, batch->tokens[0], batch->pos0, err));
    if (batch->logits) return fd_copy_logits(e, e->logits, 1, 1, batch->logits, err);
    return fd_cuda_check(cudaStreamSynchronize(e->queue.stream), "decode step", err);
}

static fd_code forward_nodes(fd_engine *e, const fd_batch *batch, fd_error *err) {
    bool watched = e->exec.observer.observe != NULL, all = batch->all_logits || watched;
    int32_t last = e->exec.graph->n_node - 1;
    const fd_fast_plan *fast = !e->fast ? NULL : batch->n_tok == 1 ? &e->fast->one : &e->fast->many;
    int32_t longest = !e->may_split || watched ? batch->n_tok
                      : fast                   ? FD_FAST_ROWS
                                               : fd_engine_batch_rows(e->exec.graph, e->exec.n_ctx);
    size_t n_vocab = (size_t)e->exec.graph->hparams.n_vocab;
    /* Nothing but kernels: they may be fused, and start while the one before drains. */
    bool alone = !watched && !e->has_override && !fast;
    fd_launch_context queue = e->queue;
    queue.overlap = e->overlap && alone;

    for (int32_t done = 0, n; done < batch->n_tok; done += n) {
        n = batch->n_tok - done < longest ? batch->n_tok - done : longest;
        bool last_pass = done + n == batch->n_tok;
        bool wanted = batch->logits && (batch->all_logits || last_pass);
        fd_run run = {.plan = fast                       ? &fast->real
                              : alone && e->fuses_rows ? &e->rows
                                                       : &e->nodes,
                      .slots = fast ? e->fast->slots : e->node_slots,
                      .queue = &queue,
                      .tokens = batch->tokens + done,
                      .pos0 = batch->pos0 + done,
                      .n_tok = n,
                      .n_kv = batch->pos0 + done + n,
                      .inputs = e->inputs,
                      .unobserved = alone,
                      .tail = all      ? FD_ROWS_ALL
                              : wanted || (e->keep_logits && last_pass) ? FD_ROWS_LAST
                                                                        : FD_ROWS_NONE};
        fd_watch *watch = watched ? &e->watch : NULL;
        FD_TRY(prepare(e, &run, fast, err));
        FD_TRY(fast ? fd_fast_pass(e, &run, fast, watch, err) : fd_run_plan(e, &run, watch, err));
        if (run.tail != FD_ROWS_NONE)
            e->logits = fd_run_tensor(e, &run, last) + (run.tail == FD_ROWS_ALL ? (size_t)(n - 1) * n_vocab : 0);
        if (wanted) {
            float *to = batch->logits + (batch->all_logits ? (size_t)done * n_vocab : 0);
            FD_TRY(fd_copy_logits(e, fd_run_tensor(e, &run, last), run.tail == FD_ROWS_ALL ? n : 1,
                               batch->all_logits ? n : 1, to, err));
        }
        /* The next pass writes over the pinned tokens. */
        FD_TRY(fd_cuda_check(cudaStreamSynchronize(e->queue.stream), "batch", err));
    }
    return FD_OK;
}

/* With an observer: one token as the fused step, anything else node by node, each shown when it has run. */
static fd_code forward_watched(fd_engine *e, const fd_batch *batch, fd_error *err) {
    const fd_observer *observer = &e->exec.observer;
    bool kept = batch->n_tok == 1 && e->may_split && !e->watch_by_node && e->exec.n_seq <= 1 &&
                e->exec.numerics != FD_NUMERICS_FAST;
    if (kept) FD_TRY(fd_kept_prepare(e, &kept, err));
    if (kept) return fd_kept_forward(e, batch, err);
    FD_TRY(fd_kept_flush(e, err));
    if (observer->begin) FD_TRY(observer->begin(observer->user, batch, err));
    FD_TRY(forward_nodes(e, batch, err));
    return observer->end ? observer->end(observer->user, err) : FD_OK;
}

static fd_code forward(fd_exec *exec, const fd_batch *batch, fd_error *err) {
    fd_engine *e = (fd_engine *)exec;
    FD_TRY(fd_cuda_check(cudaSetDevice(e->device), "device", err));
    e->watch.n_pending = 0;
    e->watch.used = 0;
    bool step = batch->n_tok == 1 && !e->has_override;
    fd_code code = exec->observer.observe ? forward_watched(e, batch, err)
                   : step                 ? forward_step(e, batch, err)
                                          : forward_nodes(e, batch, err);
    if (code != FD_OK) { /* nothing of a failed call is still under way */
        (void)cudaStreamSynchronize(e->queue.stream);
        fd_kept_forget(e);
    }
    return code;
}

static fd_code flush(fd_exec *exec, fd_error *err) {
    fd_engine *e = (fd_engine *)exec;
    FD_TRY(fd_cuda_check(cudaSetDevice(e->device), "device", err));
    return fd_kept_flush(e, err);
}

static void reset(fd_exec *exec) {
    fd_engine *e = (fd_engine *)exec;
    (void)cudaSetDevice(e->device);
    fd_kept_forget(e);
    (void)cudaMemsetAsync(e->fixed.data, 0, e->cache_bytes, e->queue.stream);
    (void)cudaStreamSynchronize(e->queue.stream);
}

static void destroy(fd_exec *exec) {
    fd_engine *e = (fd_engine *)exec;
    (void)cudaSetDevice(e->device);
    if (e->queue.stream) (void)cudaStreamSynchronize(e->queue.stream);
    fd_engine_release(e);
    free(e);
}

static const fd_exec_class engine_class = {.forward = forward,
                                           .reset = reset,
                                           .destroy = destroy,
                                           .flush = flush,
                                           .generate = fd_engine_generate};
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
    e->device = options->device;
    e->queue = (fd_launch_context){
        .n_sm = prop.multiProcessorCount, .max_shared = prop.sharedMemPerBlockOptin, .has_clusters = prop.major >= 9};
    e->overlap = !options->no_overlap && prop.major >= 9;
    e->sampling.possible = fd_sample_fits(&e->queue, e->exec.graph->hparams.n_vocab);
    return fd_cuda_check(cudaStreamCreateWithFlags(&e->queue.stream, cudaStreamNonBlocking), "stream", err);
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
        if (graph->weights[i].n_row > 1 && !fd_matvec_fits(&e->queue, graph->weights[i].n_col, 2)) return false;
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
    if (fast) FD_TRY(fd_fast_check(graph, err));
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
    e->no_graph = options->no_graph;
    e->watch_by_node = options->watch_by_node;
    e->may_split = true;
    for (int32_t i = 0; i < graph->n_node; i++) {
        /* A fault may look at the whole batch. */
        if (graph->nodes[i].override) e->has_override = true;
        if (graph->nodes[i].override || graph->nodes[i].row_offset != 0) e->may_split = false;
    }
    fd_code code = open_device(e, options, err);
    if (code == FD_OK) code = check_memory(graph, options, err);
    bool fuse = !options->no_fusion && rows_fit(e, graph);
    if (code == FD_OK) code = fd_engine_setup(e, fuse, options->int8, err);
    if (code != FD_OK) {
        destroy(&e->exec);
        return code;
    }
    if (e->batches) e->exec.class_ = &batching_class;
    *out = &e->exec;
    return FD_OK;
}

#include "engine/many.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/devices.h"

/* ---- calls of all ranks ---- */

static void run_rank(fd_many *m, int32_t rank, fd_rank_fn fn, void *call) {
    fd_error err = {0};
    fd_code code = fd_cuda_check(cudaSetDevice(m->devices[rank]), "device", &err);
    if (code == FD_OK) code = fn(m, rank, call, &err);
    err.code = code;
    if (code != FD_OK) fd_ranks_stop(&m->ranks, &err);
}

static void *work(void *user) {
    fd_worker *w = user;
    fd_many *m = w->m;
    pthread_mutex_lock(&m->ranks.lock);
    for (int32_t seen = 0;;) {
        while (m->n_call == seen && !m->ends) pthread_cond_wait(&m->ranks.changed, &m->ranks.lock);
        if (m->ends) break;
        seen = m->n_call;
        fd_rank_fn fn = m->fn;
        void *call = m->call;
        pthread_mutex_unlock(&m->ranks.lock);
        run_rank(m, w->rank, fn, call);
        pthread_mutex_lock(&m->ranks.lock);
        m->n_busy--;
        pthread_cond_broadcast(&m->ranks.changed);
    }
    pthread_mutex_unlock(&m->ranks.lock);
    return NULL;
}

fd_code fd_many_call(fd_many *m, fd_rank_fn fn, void *call, fd_error *err) {
    if (m->broken) return fd_fail(err, FD_ERR_DEVICE, "engine: a call on its GPUs failed before");
    pthread_mutex_lock(&m->ranks.lock);
    m->fn = fn;
    m->call = call;
    m->n_call++;
    m->n_busy = m->n - 1;
    pthread_cond_broadcast(&m->ranks.changed);
    pthread_mutex_unlock(&m->ranks.lock);
    run_rank(m, 0, fn, call);
    pthread_mutex_lock(&m->ranks.lock);
    while (m->n_busy > 0) pthread_cond_wait(&m->ranks.changed, &m->ranks.lock);
    bool failed = m->ranks.failed;
    pthread_mutex_unlock(&m->ranks.lock);
    if (!failed) return FD_OK;
    *err = m->ranks.why;
    m->broken = err->code != FD_STOP; /* an observer's wish, in passes without graphs */
    fd_error again = {0};
    for (int32_t r = 0; r < m->n; r++)
        if (m->engines[r]) (void)fd_engine_wait(m->engines[r], NULL, "a failed call", &again);
    if (!m->broken && fd_ranks_resume(&m->ranks, &again) != FD_OK) m->broken = true;
    return err->code;
}

fd_code fd_many_follow(fd_many *m, int32_t rank, fd_error *err) {
    fd_exec *e = &m->engines[rank]->exec;
    for (int32_t s = 0; s < m->exec.n_seq; s++) {
        FD_TRY(fd_exec_select(e, s, err));
        e->n_past = fd_exec_past(&m->exec, s);
    }
    FD_TRY(fd_exec_select(e, m->exec.sequence, err));
    e->step = m->exec.step;
    return FD_OK;
}

/* ---- tokens ---- */

/* The other ranks do what the caller's observer makes the first one do, and have no one to tell. */
static fd_code see_nothing(void *user, const fd_observation *seen, fd_error *err) {
    return (void)user, (void)seen, (void)err, FD_OK;
}
static unsigned want_as_first(void *user, const fd_node *node) {
    return ((const fd_many *)user)->wants[node->id];
}
static fd_code ask_wants(fd_many *m, fd_error *err) {
    const fd_observer *o = &m->exec.observer;
    fd_peers *peers = m->ranks.peers;
    const int32_t n = m->exec.graph->n_node;
    unsigned *own = m->wants + (peers ? (int64_t)peers->rank * n : 0);
    if (!o->observe) return FD_OK;
    for (int32_t i = 0; i < n; i++) own[i] = o->wants ? o->wants(o->user, &m->exec.graph->nodes[i]) : FD_WANT_DATA;
    if (!peers) return FD_OK;
    const fd_shared_rows all = {m->wants, 1, peers->n, sizeof *own * (size_t)n, "what is observed"};
    return peers->gather(peers, &all, err);
}

static fd_code forward_rank(fd_many *m, int32_t rank, void *call, fd_error *err) {
    fd_engine *e = m->engines[rank];
    fd_batch batch = *(const fd_batch *)call;
    FD_TRY(fd_many_follow(m, rank, err));
    e->exec.observer = m->exec.observer;
    if (e->rank > 0 && e->exec.observer.observe)
        e->exec.observer = (fd_observer){.observe = see_nothing, .wants = want_as_first, .user = m};
    if (rank > 0) {
        e->keep_logits = batch.logits != NULL;
        batch.logits = NULL;
    } else {
        e->exec.progress = m->exec.progress;
        e->exec.progress_user = m->exec.progress_user;
    }
    fd_code code = fd_engine_forward(&e->exec, &batch, err);
    e->keep_logits = false;
    return code;
}

static fd_code forward(fd_exec *exec, const fd_batch *batch, fd_error *err) {
    fd_batch call = *batch;
    FD_TRY(ask_wants((fd_many *)exec, err));
    return fd_many_call((fd_many *)exec, forward_rank, &call, err);
}

static fd_code decode_rank(fd_many *m, int32_t rank, void *call, fd_error *err) {
    fd_decode decode = *(const fd_decode *)call;
    FD_TRY(fd_many_follow(m, rank, err));
    if (rank > 0) decode.logits = NULL;
    return fd_engine_decode(&m->engines[rank]->exec, &decode, err);
}

static fd_code decode(fd_exec *exec, const fd_decode *decode_of, fd_error *err) {
    fd_decode call = *decode_of;
    return fd_many_call((fd_many *)exec, decode_rank, &call, err);
}

/* ---- the class ---- */

static void reset(fd_exec *exec) {
    fd_many *m = (fd_many *)exec;
    for (int32_t r = 0; r < m->n; r++) m->engines[r]->exec.class_->reset(&m->engines[r]->exec);
}

/* Nothing is ever late: observed steps go node by node. */
static fd_code flush(fd_exec *exec, fd_error *err) {
    return (void)exec, (void)err, FD_OK;
}

static void destroy(fd_exec *exec) {
    fd_many *m = (fd_many *)exec;
    if (fd_nccl_lost(m->ranks.nccl)) return; /* all of this may be in use on the device, until the process ends */
    pthread_mutex_lock(&m->ranks.lock);
    m->ends = true;
    pthread_cond_broadcast(&m->ranks.changed);
    pthread_mutex_unlock(&m->ranks.lock);
    for (int32_t r = 1; r < m->n; r++)
        if (m->workers[r].started) pthread_join(m->workers[r].thread, NULL);
    for (int32_t r = 0; r < m->n; r++) {
        if (m->engines[r]) fd_exec_free(&m->engines[r]->exec);
        fd_split_free(&m->splits[r]);
    }
    fd_ranks_release(&m->ranks);
    free(m->wants);
    free(m);
}

static const fd_exec_class many_class = {
    .forward = forward, .reset = reset, .destroy = destroy, .flush = flush, .generate = fd_many_generate};
static const fd_exec_class batching_class = {.forward = forward,
                                             .reset = reset,
                                             .destroy = destroy,
                                             .flush = flush,
                                             .generate = fd_many_generate,
                                             .decode = decode};

/* ---- making it ---- */

/* Of this process's engine number r. */
static fd_rank_of rank_of(const fd_many *m, int32_t r) {
    const fd_peers *peers = m->ranks.peers;
    return peers ? (fd_rank_of){.rank = peers->rank, .n = peers->n, .apart = true, .nccl = m->ranks.nccl != NULL}
                 : (fd_rank_of){.rank = r, .n = m->n};
}

/* All of them, before any memory is taken. A GPU that is named twice has room for both. */
static fd_code check_memory(const fd_many *m, const fd_graph *graph, const fd_engine_options *options, fd_error *err) {
    uint64_t taken[FD_MAX_RANKS] = {0};
    for (int32_t r = 0; r < m->n; r++) {
        fd_engine_size size = {.n_ctx = options->n_ctx, .n_seq = options->n_seq, .numerics = options->numerics};
        fd_rank_of rank = rank_of(m, r);
        fd_engine_memory memory;
        uint64_t free_bytes;
        FD_TRY(fd_engine_memory_free(m->devices[r], &free_bytes, &size.n_sm, err));
        for (int32_t q = 0; q < r; q++)
            if (m->devices[q] == m->devices[r]) free_bytes = free_bytes > taken[q] ? free_bytes - taken[q] : 0;
        fd_code code = fd_engine_memory_fits(graph, &size, rank, free_bytes, err);
        if (code != FD_OK) return fd_error_prefix(err, "GPU %d", m->devices[r]);
        FD_TRY(fd_engine_memory_of_rank(graph, &size, rank, &memory, err));
        taken[r] = fd_engine_memory_total(&memory);
    }
    return FD_OK;
}

static fd_code open_rank(fd_many *m, int32_t rank, void *call, fd_error *err) {
    fd_engine_options options = *(const fd_engine_options *)call;
    fd_engine *e = NULL;
    options.devices = (fd_engine_devices){.id = {m->devices[rank]}, .n = 1};
    options.observe_by_node = true;
    if (m->ranks.peers) options.no_overlap = true;                 /* gathers are no kernels of ours */
    if (m->ranks.peers && !m->ranks.nccl) options.no_graph = true; /* they wait for the host */
    FD_TRY(fd_devices_reach(m->devices, m->n, m->devices[rank], err));
    FD_TRY(fd_ranks_make_mailbox(&m->ranks, rank, err));
    if (rank > 0) FD_TRY(fd_split_make(m->exec.graph, m->n, rank, &m->splits[rank], err));
    FD_TRY(fd_engine_begin(m->splits[rank].graph, &options, &e, err));
    m->engines[rank] = e;
    e->ranks = &m->ranks;
    e->split = &m->splits[rank];
    e->rank = rank_of(m, rank).rank;
    return fd_engine_complete(e, &options, err);
}

static fd_code start_workers(fd_many *m, fd_error *err) {
    for (int32_t r = 1; r < m->n; r++) {
        m->workers[r] = (fd_worker){.m = m, .rank = r};
        m->workers[r].started = pthread_create(&m->workers[r].thread, NULL, work, &m->workers[r]) == 0;
        if (!m->workers[r].started) return fd_fail(err, FD_ERR_MEMORY, "engine: no thread for GPU %d", m->devices[r]);
    }
    return FD_OK;
}

/* Every split has the same rows. */
static fd_code size_pages(fd_many *m, const fd_graph *graph, fd_error *err) {
    fd_rank_of first = rank_of(m, 0);
    FD_TRY(fd_split_make(graph, first.n, first.rank, &m->splits[0], err));
    m->ranks.n_page_row = m->exec.n_seq;
    m->ranks.n_page = fd_ranks_page(m->splits[0].graph, m->exec.n_seq);
    return FD_OK;
}

static fd_code open_all(fd_many *m, const fd_graph *graph, const fd_engine_options *options, fd_error *err) {
    fd_peers *peers = options->peers;
    char words[192] = "GPUs";
    FD_TRY(fd_ranks_make(&m->ranks, peers ? peers->n : m->n, fd_devices_differ(m->devices, m->n), err));
    m->ranks.peers = peers;
    FD_TRY(fd_devices_check(m->devices, m->n, err));
    FD_TRY(fd_cuda_check(cudaSetDevice(m->devices[0]), "device", err));
    if (peers) FD_TRY(fd_ranks_choose_gather(&m->ranks, words, sizeof words, err));
    FD_TRY(check_memory(m, graph, options, err));
    FD_TRY(size_pages(m, graph, err));
    FD_TRY(start_workers(m, err));
    fd_engine_options call = *options;
    FD_TRY(fd_many_call(m, open_rank, &call, err));
    const fd_exec *first = &m->engines[0]->exec;
    snprintf(m->exec.device, sizeof m->exec.device, "%.60s (%d %s)", first->device, m->ranks.n, words);
    memcpy(m->exec.driver, first->driver, sizeof m->exec.driver);
    m->exec.numerics_name = first->numerics_name;
    if (m->engines[0]->step.batches) m->exec.class_ = &batching_class;
    return FD_OK;
}

fd_code fd_engine_new_many(const fd_graph *graph, const fd_engine_options *options, fd_exec **out, fd_error *err) {
    *out = NULL;
    bool fast = options->numerics == FD_NUMERICS_FAST;
    const size_t n_process = options->peers ? (size_t)options->peers->n : 1;
    if (n_process > FD_MAX_RANKS || (options->peers && options->devices.n > 1))
        return fd_fail(err, FD_ERR_UNSUPPORTED, "%zu processes with %d GPUs each: at most %d, with one each", n_process,
                       options->devices.n, FD_MAX_RANKS);
    if (!fast && graph->kv_type[0] && strcmp(graph->kv_type, "f32") != 0)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "several GPUs: caches of %s, expected f32; one GPU keeps f16",
                       graph->kv_type);
    if (fast && !fd_devices_differ(options->devices.id, options->devices.n))
        return fd_fail(
            err, FD_ERR_UNSUPPORTED,
            "several GPUs: fast numerics run on different ones: cuBLAS waits for a GPU on which another rank "
            "waits; exact and q8act run twice on one");
    fd_many *m = calloc(1, sizeof *m);
    if (m) m->wants = calloc(n_process * (size_t)graph->n_node, sizeof *m->wants);
    if (!m || !m->wants) {
        free(m);
        return fd_fail(err, FD_ERR_MEMORY, "engine: out of memory");
    }
    m->n = options->peers ? 1 : options->devices.n;
    memcpy(m->devices, options->devices.id, sizeof m->devices);
    m->exec = (fd_exec){.class_ = &many_class,
                        .graph = graph,
                        .numerics = options->numerics,
                        .kv_type = fast ? "f16" : NULL,
                        .backend = "gpu",
                        .n_ctx = options->n_ctx,
                        .n_seq = options->n_seq > 1 ? options->n_seq : 1};
    fd_code code = open_all(m, graph, options, err);
    if (code == FD_OK)
        *out = &m->exec;
    else
        destroy(&m->exec);
    return code;
}

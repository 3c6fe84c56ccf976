/* ranks_check MODEL.gguf…: an engine on several GPUs, on a CUDA runtime in host memory (fake_cuda_runtime.h): no GPU
 * is needed.
 *
 * what "--gpus" may say, and what is said of a GPU that is missing, too small or out of the others' reach, before
 * memory is taken each rank takes what it says, and all is given back an observer sees every node of the model once,
 * in order; one that stops the run, or fails, keeps nobody waiting an allocation that is refused to one rank ends all
 * of them */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/run.h"
#include "engine/budget.h"
#include "engine/engine.h"
#include "tests/gpu/fake_cuda_runtime.h"

static int n_failed;

static void expect(bool holds, const char *path, const char *what) {
    if (holds) return;
    printf("FAIL %s: %s\n", path, what);
    n_failed++;
}

/* ---- arguments ---- */

static bool parses(const char *text, const char *expected) {
    fd_error err = {0};
    fd_engine_devices devices;
    char found[64] = "";
    if (fd_engine_parse_devices(text, &devices, &err) != FD_OK) return !expected && err.code == FD_ERR_INPUT;
    for (int32_t i = 0; i < devices.n && strlen(found) < sizeof found - 8; i++)
        snprintf(found + strlen(found), 8, "%d ", devices.id[i]);
    return expected && strcmp(found, expected) == 0;
}

static void check_arguments(void) {
    static const char *const cases[][2] = {
        {"1", "0 "},    {"3", "0 1 2 "}, {"0,1", "0 1 "}, {"0,0,1", "0 0 1 "}, {"2,", "2 "},     {"7,3", "7 3 "},
        {"0", NULL},    {"17", NULL},    {"", NULL},      {"-1", NULL},        {"a", NULL},      {"1,b", NULL},
        {"1,,2", NULL}, {",1", NULL},    {"1 ", NULL},    {"1,2,,", NULL},     {"0x1", NULL},    {"99999999999", NULL},
        {"1;2", NULL},  {" 2", NULL},    {"2.0", NULL},   {"1,-2", NULL},      {"1,2,3x", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(parses(cases[i][0], cases[i][1]), cases[i][0], "is not read as expected");
    expect(!parses("2", "0 "), "2", "a wrong reading goes unnoticed");
}

/* ---- making an engine ---- */

static const fd_engine_devices two = {.id = {0, 1}, .n = 2}, three = {.id = {0, 1, 0}, .n = 3};

static fd_exec *open_engine(const fd_graph *graph, fd_engine_size size, fd_engine_devices devices, fd_error *err) {
    fd_engine_options options = {.n_ctx = size.n_ctx, .n_seq = size.n_seq, .numerics = size.numerics, .no_graph = true};
    fd_exec *exec = NULL;
    options.devices = devices;
    *err = (fd_error){0};
    return fd_engine_new(graph, &options, &exec, err) == FD_OK ? exec : NULL;
}

static void check_refusal(const char *path, const fd_graph *graph, fake_cuda runtime, fd_engine_devices devices,
                          const char *says) {
    fd_error err;
    char what[160];
    fake = runtime;
    fd_exec *exec = open_engine(graph, (fd_engine_size){.n_ctx = 64}, devices, &err);
    snprintf(what, sizeof what, "expected \"%s\", not \"%.90s\"", says, err.message);
    expect(!exec && strstr(err.message, says), path, what);
    expect(fake.peak == 0 && fake.n_pinned == 0, path, "something is taken before a refusal, or kept after it");
    fd_exec_free(exec);
}

static uint64_t needed(const fd_graph *graph, fd_engine_size size, int32_t rank, int32_t n) {
    fd_error err = {0};
    fd_engine_memory memory;
    must(fd_engine_memory_of_rank(graph, &size, (fd_rank_of){rank, n}, &memory, &err), &err);
    return fd_engine_memory_total(&memory);
}

static void check_refusals(const char *path, const fd_graph *graph) {
    const fd_engine_size size = {.n_ctx = 64};
    const uint64_t first = needed(graph, size, 0, 3), last = needed(graph, size, 2, 3);
    fd_error err;
    check_refusal(path, graph, (fake_cuda){.free_bytes = 1ull << 40}, two, "GPU 1: there is 1");
    check_refusal(path, graph, (fake_cuda){.free_bytes = 1ull << 40, .n_device = 2, .no_peers = true}, two,
                  "GPU 0 cannot reach the memory of GPU 1");
    check_refusal(path, graph, (fake_cuda){.free_bytes = first - 1, .n_device = 2}, three, "GPU 0: device memory: ");
    /* The third rank is on the first one's GPU. */
    check_refusal(path, graph, (fake_cuda){.free_bytes = first + last - 1, .n_device = 2}, three,
                  "GPU 0: device memory: ");
    fake = (fake_cuda){.free_bytes = 1ull << 40, .n_device = 2};
    fd_exec *exec = open_engine(graph, (fd_engine_size){.n_ctx = 64, .numerics = FD_NUMERICS_FAST}, three, &err);
    expect(!exec && err.code == FD_ERR_UNSUPPORTED, path, "fast numerics on a GPU named twice are not refused");
    for (int64_t i = 1; i < 9; i++) {
        fake = (fake_cuda){.free_bytes = 1ull << 40, .n_device = 2, .fail_alloc = i};
        exec = open_engine(graph, (fd_engine_size){.n_ctx = 64}, three, &err);
        expect(!exec && err.code == FD_ERR_MEMORY && strstr(err.message, "device memory for"), path, err.message);
        expect(fake.taken == 0 && fake.n_pinned == 0, path, "a failed setup keeps memory");
    }
}

/* ---- running it ---- */

static fd_code feed(fd_exec *exec, int32_t n, fd_error *err) {
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    float *logits = calloc((size_t)exec->graph->hparams.n_vocab, sizeof *logits);
    if (!tokens || !logits) exit(2);
    fd_batch batch = {.tokens = tokens, .n_tok = n, .pos0 = exec->n_past, .logits = logits};
    fd_code code = fd_exec_forward(exec, &batch, err);
    free(tokens);
    free(logits);
    return code;
}

static void check_memory(const char *path, const fd_graph *graph, fd_engine_size size, fd_engine_devices devices) {
    char what[160];
    fd_error err;
    uint64_t said = 0;
    for (int32_t r = 0; r < devices.n; r++) said += needed(graph, size, r, devices.n);
    fake = (fake_cuda){.free_bytes = 1ull << 40, .n_device = 2};
    fd_exec *exec = open_engine(graph, size, devices, &err);
    if (!exec) must(err.code, &err);
    int32_t rows =
        size.numerics == FD_NUMERICS_FAST ? fd_fast_batch_rows(size.n_ctx) : fd_engine_batch_rows(graph, size.n_ctx);
    if (size.n_ctx > rows) must(feed(exec, size.n_ctx - rows, &err), &err);
    must(feed(exec, rows, &err), &err);
    snprintf(what, sizeof what, "%d ranks, context %d, %d sequences, %s: %llu bytes said, %llu taken", devices.n,
             size.n_ctx, size.n_seq, fd_numerics_name(size.numerics), (unsigned long long)said,
             (unsigned long long)fake.peak);
    expect(fake.peak == said, path, what);
    fd_exec_free(exec);
    expect(fake.taken == 0 && fake.n_alloc == 0 && fake.n_pinned == 0, path, "something is never given back");
}

typedef struct watcher {
    int32_t n_seen, last, stops_at;
    fd_code with;
    bool in_order;
} watcher;

static fd_code watch(void *user, const fd_observation *seen, fd_error *err) {
    watcher *w = user;
    w->in_order = w->in_order && seen->node == &seen->graph->nodes[w->last + 1];
    w->last = seen->node->id;
    if (++w->n_seen != w->stops_at) return FD_OK;
    return w->with == FD_STOP ? FD_STOP : fd_fail(err, w->with, "the observer has seen enough");
}

static void check_observers(const char *path, const fd_graph *graph, fd_numerics numerics, fd_engine_devices devices) {
    fd_error err = {0};
    fake = (fake_cuda){.free_bytes = 1ull << 40, .n_device = 2};
    fd_exec *exec = open_engine(graph, (fd_engine_size){.n_ctx = 64, .numerics = numerics}, devices, &err);
    if (!exec) must(err.code, &err);
    for (int32_t n = 1; n < 20; n += 9) {
        watcher w = {.last = -1, .in_order = true};
        fd_exec_set_observer(exec, (fd_observer){.observe = watch, .user = &w});
        must(feed(exec, n, &err), &err);
        expect(w.n_seen == graph->n_node && w.in_order, path, "an observer does not see every node once, in order");
    }
    watcher stops = {.last = -1, .stops_at = 3, .with = FD_STOP},
            fails = {.last = -1, .stops_at = 3, .with = FD_ERR_IO};
    fd_exec_set_observer(exec, (fd_observer){.observe = watch, .user = &stops});
    expect(feed(exec, 2, &err) == FD_STOP && stops.n_seen == 3, path, "a stop is not passed on");
    fd_exec_set_observer(exec, (fd_observer){0});
    expect(feed(exec, 2, &err) == FD_OK, path, "after a stop nothing runs");
    fd_exec_set_observer(exec, (fd_observer){.observe = watch, .user = &fails});
    expect(feed(exec, 2, &err) == FD_ERR_IO && strstr(err.message, "seen enough"), path, err.message);
    fd_exec_free(exec);
}

int main(int argc, char **argv) {
    check_arguments();
    for (int i = 1; i < argc; i++) {
        fd_error err = {0};
        fd_gguf *gguf;
        fd_graph *graph;
        must(fd_gguf_open(argv[i], &gguf, &err), &err);
        must(fd_graph_build(gguf, &graph, NULL, &err), &err);
        check_refusals(argv[i], graph);
        static const int32_t contexts[] = {17, 64, 513, 1500}, sequences[] = {1, 3};
        static const fd_numerics numerics[] = {FD_NUMERICS_EXACT, FD_NUMERICS_Q8ACT, FD_NUMERICS_FAST};
        for (int k = 0; k < 24; k++)
            check_memory(argv[i], graph,
                         (fd_engine_size){.n_ctx = contexts[k % 4],
                                          .n_seq = sequences[k / 4 % 2],
                                          .numerics = numerics[k / 8],
                                          .n_sm = FAKE_CUDA_SM},
                         k % 2 || k >= 16 ? two : three);
        check_observers(argv[i], graph, FD_NUMERICS_EXACT, three);
        check_observers(argv[i], graph, FD_NUMERICS_FAST, two);
        fd_graph_free(graph);
        fd_gguf_close(gguf);
    }
    printf("%d models, %d failed\n", argc - 1, n_failed);
    return n_failed != 0 || argc < 2;
}

/* memory_check MODEL.gguf…: what an engine says it will take of a device's memory is what it takes, weights arrive as
 * they are in the file, and what does not fit is refused before anything is taken. On a CUDA runtime in host memory
 * (fake_cuda_runtime.h): no GPU is needed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/run.h"
#include "engine/budget.h"
#include "engine/engine.h"
#include "engine/pack_weight.h"
#include "engine/weights.h"
#include "model/gguf/quant.h"
#include "tests/gpu/fake_cuda_runtime.h"

static int n_failed;

static void expect(bool holds, const char *path, const char *what) {
    if (holds) return;
    printf("FAIL %s: %s\n", path, what);
    n_failed++;
}

static fd_engine_memory needed(const fd_graph *graph, fd_engine_size size) {
    fd_error err = {0};
    fd_engine_memory memory;
    must(fd_engine_memory_needed(graph, &size, &memory, &err), &err);
    return memory;
}

static fd_exec *open_engine(const fd_graph *graph, fd_engine_size size, fd_error *err) {
    /* The graph is captured by the driver, which is not here. */
    fd_engine_options options = {.n_ctx = size.n_ctx, .n_seq = size.n_seq, .numerics = size.numerics, .no_graph = true};
    fd_exec *exec = NULL;
    return fd_engine_new(graph, &options, &exec, err) == FD_OK ? exec : NULL;
}

/* `n` more tokens. */
static void feed(fd_exec *exec, int32_t n) {
    fd_error err = {0};
    int32_t *tokens = calloc((size_t)n + 1, sizeof *tokens);
    float *logits = calloc((size_t)exec->graph->hparams.n_vocab, sizeof *logits);
    if (!tokens || !logits) exit(1);
    fd_batch batch = {.tokens = tokens, .n_tok = n, .pos0 = exec->n_past, .logits = logits};
    if (n > 0) must(fd_exec_forward(exec, &batch, &err), &err);
    free(tokens);
    free(logits);
}

static fd_code look(void *user, const fd_observation *seen, fd_error *err) {
    (void)seen, (void)err;
    ++*(int32_t *)user;
    return FD_OK;
}

/* An observed decode step, after all that an engine takes without. */
static void check_observed(const char *path, fd_exec *exec, const fd_engine_memory *m) {
    char what[128];
    int32_t n_seen = 0;
    fd_exec_reset(exec);
    feed(exec, exec->n_ctx - 1);
    fd_exec_set_observer(exec, (fd_observer){.observe = look, .wants = fd_want_fingerprints, .user = &n_seen});
    feed(exec, 1);
    snprintf(what, sizeof what, "context %d, observed: %llu bytes said, %llu taken", exec->n_ctx,
             (unsigned long long)(fd_engine_memory_total(m) + m->observed), (unsigned long long)fake.peak);
    expect(m->observed > 0 && fake.peak == fd_engine_memory_total(m) + m->observed, path, what);
    expect(n_seen == exec->graph->n_node, path, "an observed step does not show every node");
}

static void check_estimate(const char *path, const fd_graph *graph, fd_engine_size size) {
    char what[128];
    fd_error err = {0};
    fd_engine_memory m = needed(graph, size);
    fake = (fake_cuda){.free_bytes = 1ull << 40};
    fd_exec *exec = open_engine(graph, size, &err);
    if (!exec) must(err.code, &err);
    /* What needs most: as many rows as ever run together, and they see the whole context. */
    int32_t rows = fd_engine_batch_rows(graph, size.n_ctx);
    feed(exec, size.n_ctx - rows);
    feed(exec, rows);
    snprintf(what, sizeof what, "context %d, %d sequences, %s: %llu bytes said, %llu taken", size.n_ctx, size.n_seq,
             fd_numerics_name(size.numerics), (unsigned long long)fd_engine_memory_total(&m),
             (unsigned long long)fake.peak);
    /* In a context of one position every pass is a decode step, and a prompt's memory is not taken. */
    bool as_said = size.n_ctx == 1 ? fake.peak < fd_engine_memory_total(&m) : fake.peak == fd_engine_memory_total(&m);
    expect(as_said, path, what);
    expect(m.weights > 0 && m.cache >= (uint64_t)size.n_ctx * 2 * sizeof(float) && m.scratch > 0, path, "a part is 0");
    if (size.n_seq == 1 && size.n_ctx > 1) check_observed(path, exec, &m);
    fd_exec_free(exec);
    expect(fake.taken == 0 && fake.n_alloc == 0 && fake.n_pinned == 0, path, "something is never given back");
}

typedef struct heard {
    int32_t calls;
    int64_t done, total;
    bool rises;
} heard;

static void hear(void *user, int64_t done, int64_t total) {
    heard *h = user;
    *h = (heard){h->calls + 1, done, total, h->rises && done > h->done};
}

/* A prompt of several passes says after each how far it is; one of a single pass says nothing. */
static void check_progress(const char *path, const fd_graph *graph) {
    fd_error err = {0};
    fake = (fake_cuda){.free_bytes = 1ull << 40};
    fd_exec *exec = open_engine(graph, (fd_engine_size){.n_ctx = 3000}, &err);
    if (!exec) must(err.code, &err);
    int32_t rows = fd_engine_batch_rows(graph, 3000);
    heard h = {.rises = true};
    fd_exec_set_progress(exec, hear, &h);
    feed(exec, rows);
    expect(rows < 1500 && h.calls == 0, path, "a prompt of one pass speaks of its progress");
    feed(exec, rows + 1);
    expect(h.calls == 2 && h.rises && h.done == rows + 1 && h.total == rows + 1, path, "progress of a prompt's passes");
    fd_exec_free(exec);
}

static void check_estimates(const char *path, const fd_graph *graph) {
    static const int32_t contexts[] = {1, 2, 17, 64, 65, 511, 512, 513, 1500}, sequences[] = {1, 2, 5};
    static const fd_numerics numerics[] = {FD_NUMERICS_EXACT, FD_NUMERICS_Q8ACT};
    enum { N_CONTEXT = sizeof contexts / sizeof *contexts };
    for (size_t i = 0; i < 2 * 3 * N_CONTEXT; i++)
        check_estimate(path, graph,
                       (fd_engine_size){.n_ctx = contexts[i % N_CONTEXT],
                                        .n_seq = sequences[i / N_CONTEXT % 3],
                                        .numerics = numerics[i / N_CONTEXT / 3]});
}

static void check_refusal(const char *path, const fd_graph *graph) {
    fd_error err = {0};
    const fd_engine_size size = {.n_ctx = 3000, .n_seq = 1}, least = {.n_ctx = 1, .n_seq = 1};
    fd_engine_memory m = needed(graph, size), one = needed(graph, least);
    uint64_t half = fd_engine_memory_total(&one) + (fd_engine_memory_total(&m) - fd_engine_memory_total(&one)) / 2;

    fake = (fake_cuda){.free_bytes = half};
    expect(!open_engine(graph, size, &err) && err.code == FD_ERR_MEMORY, path, "too much is not refused");
    expect(fake.peak == 0, path, "something is taken before the refusal");
    const char *fits = strstr(err.message, "a context of ");
    int32_t said = fits ? atoi(fits + strlen("a context of ")) : 0;
    expect(said > 0 && said < size.n_ctx, path, err.message);
    if (said > 0) {
        fd_exec *exec = open_engine(graph, (fd_engine_size){.n_ctx = said}, &err);
        expect(exec != NULL, path, "the context that would fit does not");
        if (exec) feed(exec, said);
        fd_exec_free(exec);
        fd_engine_size longer = {.n_ctx = said + 1};
        expect(fd_engine_memory_fits(graph, &longer, (fd_rank_of){0}, half, &err) == FD_ERR_MEMORY, path,
               "a longer context fits too");
    }

    fake = (fake_cuda){.free_bytes = m.weights - 1};
    expect(!open_engine(graph, size, &err) && strstr(err.message, "the weights alone do not fit"), path, err.message);
    expect(fake.peak == 0, path, "something is taken before the refusal of the weights");
    fake = (fake_cuda){.free_bytes = m.weights};
    expect(!open_engine(graph, size, &err) && strstr(err.message, "no context fits"), path, err.message);

    /* What was free when it was asked for may be gone: the message names what was refused, and all is given back. */
    for (int64_t i = 1; i < 4; i++) {
        fake = (fake_cuda){.free_bytes = 1ull << 40, .fail_alloc = i};
        expect(!open_engine(graph, (fd_engine_size){.n_ctx = 64}, &err) && err.code == FD_ERR_MEMORY &&
                   strstr(err.message, "device memory for"),
               path, err.message);
        expect(fake.taken == 0 && fake.n_pinned == 0, path, "a failed setup keeps memory");
    }
}

/* Each row on the "device" is what its own packing gives, whatever thread brought it. */
static void check_weights(const char *path, const fd_graph *graph) {
    fd_error err = {0};
    fd_device_weights on_device = {0};
    fake = (fake_cuda){.free_bytes = 1ull << 40};
    must(fd_weights_upload(graph, NULL, 0, NULL, &on_device, &err), &err);
    int64_t n_wrong = 0, n_row = 0;
    for (int32_t i = 0; i < graph->n_weight; i++) {
        const fd_weight *w = &graph->weights[i];
        const fd_device_matrix *m = &on_device.matrix[i];
        int64_t file_bytes = fd_dtype_row_bytes(w->dtype, w->n_col);
        char *packed = malloc(m->data ? (size_t)m->row_bytes : 1);
        float *values = malloc(sizeof *values * (size_t)w->n_col);
        if (!packed || !values) exit(1);
        for (int64_t row = 0; row < w->n_row; row++) {
            const char *from = (const char *)w->data + row * file_bytes;
            if (m->data) {
                fd_pack_weight_row(w->dtype, w->n_col, from, packed);
                n_wrong += memcmp((const char *)m->data + row * m->row_bytes, packed, (size_t)m->row_bytes) != 0;
                n_row++;
            }
            if (on_device.vector[i]) {
                fd_dequantize_row(w->dtype, from, values, w->n_col);
                n_wrong += memcmp(on_device.vector[i] + row * w->n_col, values, sizeof *values * (size_t)w->n_col) != 0;
                n_row++;
            }
        }
        free(packed);
        free(values);
    }
    expect(n_row > 0 && n_wrong == 0, path, "a row of weights is not as it was packed");

    /* The comparison can fail: one bit of the first matrix. */
    for (int32_t i = 0; i < graph->n_weight; i++)
        if (on_device.matrix[i].data) {
            char *bits = (char *)on_device.block.data, *packed = malloc((size_t)on_device.matrix[i].row_bytes);
            if (!packed) exit(1);
            bits[(const char *)on_device.matrix[i].data - bits] ^= 1;
            fd_pack_weight_row(graph->weights[i].dtype, graph->weights[i].n_col, graph->weights[i].data, packed);
            expect(memcmp(on_device.matrix[i].data, packed, (size_t)on_device.matrix[i].row_bytes) != 0, path,
                   "a changed bit is not seen");
            free(packed);
            break;
        }
    fd_weights_free(&on_device);
    expect(fake.taken == 0 && fake.n_pinned == 0, path, "uploading weights keeps memory");
}

static void check(const char *path) {
    fd_error err = {0};
    fd_gguf *gguf;
    fd_graph *graph;
    must(fd_gguf_open(path, &gguf, &err), &err);
    must(fd_graph_build(gguf, &graph, NULL, &err), &err);
    check_estimates(path, graph);
    check_progress(path, graph);
    check_refusal(path, graph);
    check_weights(path, graph);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) check(argv[i]);
    printf("%d models, %d failed\n", argc - 1, n_failed);
    return n_failed != 0 || argc < 2;
}

/* trace_writer ROUNDS [only=WORD] [helpers=N] [FOLDER …]: what a trace costs the run that is traced, without a model.
 *
 * For each folder (a memory file system, a disk), level and shape of step, or the shapes whose names contain the word:
 * n_layer times n_tensor tensors are shown to the writer, as an executor shows them.
 *   call     microseconds a tensor in the thread that calls: what the run waits for
 *   whole    microseconds a tensor from the first step to the end of fd_trace_finish: what the machine can keep up with
 *   tensors/s, MB/s  of the whole
 *   token    milliseconds a position of the model, in the thread that calls
 * Those of a llama come with their fingerprints, as a GPU hands them over: nothing is left but to write them. `plain`: as
 * many bytes by write(2), a MiB at a time from the cache, which no trace can be faster than in one thread.
 * Medians; the cases take turns. The writer has as many helpers as it has for a run, or N. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/measure.h"
#include "bench/run.h"
#include "dumpers/store/trace.h"

enum { MAX_ROUNDS = 15, N_TENSOR = 16 };
static int n_round = 5;
static const char *only = "";
static int helpers;

typedef struct shape {
    const char *name;
    int32_t n_layer, n_column; /* N_TENSOR tensors [n_column] a layer */
    int32_t n_tok, n_step;
    bool llama; /* of several sizes, with what a GPU works out */
} shape;

static const shape shapes[] = {
    {"24 layers, 3.5 KiB, decode", 24, 896, 1, 64},    {"32 layers, 16 KiB, decode", 32, 4096, 1, 32},
    {"4 layers, 16 KiB, decode", 4, 4096, 1, 128},     {"2 layers, 3.5 KiB, prefill 512", 2, 896, 512, 1},
    {"1 layer, 16 KiB, prefill 512", 1, 4096, 512, 1}, {"a llama of 1.1B, decode", 22, 2048, 1, 256, .llama = true},
};
/* Norm, q, k, v, rope, rope, scores, weights, attention, output, addition, norm, gate, up, product, down: in eighths of
 * n_column; 0: N_HEAD rows of a key for each position so far. */
static const int32_t llama_eighths[N_TENSOR] = {8, 8, 1, 1, 8, 1, 0, 0, 8, 8, 8, 8, 22, 22, 22, 8};
static const char *const levels[] = {"fingerprint", "stats", "full", "full, compressed", "plain"};
enum { PLAIN = 4, N_HEAD = 32 };
/* Compressing is slow: fewer steps, and none of a prefill. */
static int32_t steps_of(const shape *s, int level) {
    if (!strstr(s->name, only)) return 0;
    if (level == FD_TRACE_FULL + 1) return s->n_tok > 1 || s->llama ? 0 : s->n_step / 8;
    return s->n_step;
}
static int32_t column_of(const shape *s, int32_t tensor) {
    return s->llama ? s->n_column / 8 * llama_eighths[tensor % N_TENSOR] : s->n_column;
}
static double bytes_of(const shape *s, int level) {
    double n = 0, n_step = steps_of(s, level);
    for (int32_t i = 0; i < N_TENSOR; i++) n += column_of(s, i) > 0 ? column_of(s, i) : N_HEAD * (n_step + 1) / 2;
    return 4 * n * s->n_layer * s->n_tok * n_step;
}
enum { N_SHAPE = sizeof shapes / sizeof *shapes, N_LEVEL = sizeof levels / sizeof *levels };

static fd_graph make_graph(const shape *s) {
    int32_t n = s->n_layer * N_TENSOR;
    fd_graph graph = {.nodes = calloc((size_t)n, sizeof(fd_node)), .n_node = n};
    graph.hparams.n_layer = s->n_layer;
    graph.hparams.n_head = 1;
    for (int32_t i = 0; graph.nodes && i < n; i++) {
        fd_node *node = &graph.nodes[i];
        *node = (fd_node){.id = i, .op = FD_OP_RMS_NORM, .layer = i / N_TENSOR, .n_dim = 1, .shape = {column_of(s, i)}};
        if (column_of(s, i) == 0) {
            node->op = FD_OP_ATTN_SCORES;
            node->over_kv = true;
            node->n_dim = 2;
            node->shape[0] = N_HEAD;
        }
        node->input[0] = i - 1;
        node->input[1] = node->weight[0] = node->weight[1] = -1;
        snprintf(node->name, sizeof node->name, "blk.%d.t%d", i / N_TENSOR, i % N_TENSOR);
    }
    return graph;
}

static void measure_plain(const shape *s, const char *path, const float *data, double out[2]) {
    enum { PIECE = 1 << 20 };
    double begin = now(), left = bytes_of(s, PLAIN);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    for (ssize_t n; file >= 0 && left > 0; left -= (double)n)
        if ((n = write(file, data, left < PIECE ? (size_t)left : PIECE)) <= 0) break;
    if (file < 0 || left > 0 || close(file) != 0) exit(2);
    out[0] = out[1] = now() - begin;
    unlink(path);
}

/* Seconds in the calls, and in all. */
static void measure(const shape *s, int level, const char *path, const float *data, double out[2]) {
    fd_graph graph = make_graph(s);
    fd_trace_options options = fd_trace_defaults(path);
    fd_trace_info info = {0};
    fd_error err = {0};
    fd_trace_writer *writer;
    int32_t tokens[512] = {0};
    options.level = level > FD_TRACE_FULL ? FD_TRACE_FULL : (fd_trace_level)level;
    options.helpers = helpers;
    options.compress = level > FD_TRACE_FULL;
    must(fd_trace_create(&options, &info, &graph, FD_NUMERICS_EXACT, &writer, &err), &err);
    fd_observer observer = fd_trace_observer(writer);
    const fd_fingerprint handed = {1, 2};
    const fd_stats stats = {0};
    double begin = now();
    for (int32_t step = 0; step < steps_of(s, level); step++) {
        int32_t pos0 = step * s->n_tok;
        must(fd_trace_begin_step(writer, s->n_tok > 1 ? FD_STEP_PREFILL : FD_STEP_DECODE, tokens, s->n_tok, pos0, &err),
             &err);
        for (int32_t i = 0; i < graph.n_node; i++) {
            fd_observation o = {.graph = &graph,
                                .node = &graph.nodes[i],
                                .step = step,
                                .pos0 = pos0,
                                .n_pos = s->n_tok,
                                .row_stride = fd_node_row_stride(&graph.nodes[i], pos0 + s->n_tok),
                                .dtype = FD_F32,
                                .fingerprints = s->llama ? &handed : NULL,
                                .stats = s->llama ? &stats : NULL,
                                .data = data + i};
            must(observer.observe(observer.user, &o, &err), &err);
        }
        must(fd_trace_end_step(writer, &err), &err);
    }
    out[0] = now() - begin;
    must(fd_trace_finish(writer, &err), &err);
    out[1] = now() - begin;
    free(graph.nodes);
    unlink(path);
}

static void report(const char *folder, const float *data) {
    static double call[N_SHAPE][N_LEVEL][MAX_ROUNDS], whole[N_SHAPE][N_LEVEL][MAX_ROUNDS];
    char path[4096];
    snprintf(path, sizeof path, "%s/trace_writer.%ld.h5", folder, (long)getpid());
    for (int r = 0; r < n_round; r++)
        for (int i = 0; i < N_SHAPE; i++)
            for (int level = 0; level < N_LEVEL; level++) {
                double seconds[2];
                if (steps_of(&shapes[i], level) == 0) continue;
                if (level == PLAIN)
                    measure_plain(&shapes[i], path, data, seconds);
                else
                    measure(&shapes[i], level, path, data, seconds);
                call[i][level][r] = seconds[0];
                whole[i][level][r] = seconds[1];
            }
    printf("%s\n%-32s %-17s %9s %9s %11s %8s %9s\n", folder, "", "", "call us", "whole us", "tensors/s", "MB/s",
           "token ms");
    for (int i = 0; i < N_SHAPE; i++)
        for (int level = 0; level < N_LEVEL; level++) {
            const shape *s = &shapes[i];
            int32_t n_step = steps_of(s, level);
            if (n_step == 0) continue;
            double tensors = (double)s->n_layer * N_TENSOR * n_step, mb = 1e-6 * bytes_of(s, level);
            double a = median(call[i][level], n_round), b = median(whole[i][level], n_round);
            printf("%-32s %-17s %9.2f %9.2f %11.0f %8.0f %9.3f\n", s->name, levels[level], 1e6 * a / tensors,
                   1e6 * b / tensors, tensors / b, mb / b, 1e3 * a / (n_step * s->n_tok));
        }
}

int main(int argc, char **argv) {
    size_t n = (size_t)512 * 4096 + 4096;
    float *data = malloc(n * sizeof *data);
    if (!data) return 2;
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) { /* 16 bits of mantissa, as much as compresses in real tensors */
        state = state * 1664525u + 1013904223u;
        data[i] = ((float)(state >> 16) - 32768.0f) * 1e-4f;
    }
    if (argc > 1) n_round = atoi(argv[1]) > 0 && atoi(argv[1]) <= MAX_ROUNDS ? atoi(argv[1]) : 1;
    int first = 2;
    for (; first < argc && strchr(argv[first], '='); first++)
        if (strncmp(argv[first], "only=", 5) == 0)
            only = argv[first] + 5;
        else
            helpers = atoi(argv[first] + 8);
    for (int i = first; i < argc || i == first; i++) report(i < argc ? argv[i] : ".", data);
    free(data);
    return 0;
}

/* trace_gpu MODEL.gguf [-o FILE.h5]: what observing costs a GPU decode: tokens per second without an observer and at each
 * level, all in one executor, taking turns; medians.
 *
 *   fingerprint, stats   what a trace of that level takes, worked out on the device, to memory
 *   full                 that and every element, to pinned host memory; with a copy: and from there to memory of its own
 *   … to the file        the same through the trace's writer, until every step is in the file; ending it is shown apart
 *
 * The logits of every token come to the host in all of them. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/generate_gpu.h"
#include "dumpers/store/trace.h"

enum { MAX_ROUND = 64, N_ROW = 9 };

typedef struct options {
    const char *path, *out;
    int n_decode, n_deep, n_round;
} options;

/* Takes what it is shown. */
typedef struct sink {
    unsigned wants;
    char *copy; /* elements go there, one step over the other; NULL: they are not copied */
    size_t room, used;
    uint64_t bytes;
    uint64_t mixed; /* of the fingerprints: what is shown is read */
} sink;

typedef struct row {
    const char *name;
    int level; /* fd_trace_level; -1: not observed */
    bool copy, file, by_node;
    double rate[MAX_ROUND], last[MAX_ROUND]; /* tokens/s; seconds of fd_trace_finish */
    double bytes;                            /* shown a token */
} row;

static error_t parse(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    int *number = key == 'n' ? &o->n_decode : key == 'd' ? &o->n_deep : key == 'r' ? &o->n_round : NULL;
    if (number) {
        *number = atoi(arg);
        return 0;
    }
    switch (key) {
    case 'o': o->out = arg; return 0;
    case ARGP_KEY_ARG: o->path = arg; return 0;
    case ARGP_KEY_END:
        if (!o->path || o->n_decode < 1 || o->n_deep < 0 || o->n_round < 1 || o->n_round > MAX_ROUND) argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static fd_code take(void *user, const fd_observation *o, fd_error *err) {
    sink *s = user;
    size_t bytes = o->data ? sizeof(float) * (size_t)(o->row_stride * o->n_pos) : 0;
    if (o->fingerprints) s->mixed ^= o->fingerprints->lo;
    s->bytes += bytes;
    if (!s->copy || bytes == 0) return FD_OK;
    if (s->used + bytes > s->room) return fd_fail(err, FD_ERR_MEMORY, "a step of more than %zu bytes", s->room);
    memcpy(s->copy + s->used, o->data, bytes);
    s->used += bytes;
    return FD_OK;
}

static unsigned take_wants(void *user, const fd_node *node) {
    return (void)node, ((const sink *)user)->wants;
}

static fd_code take_begin(void *user, const fd_batch *batch, fd_error *err) {
    ((sink *)user)->used = 0;
    return (void)batch, (void)err, FD_OK;
}

static fd_code take_end(void *user, fd_error *err) {
    return (void)user, (void)err, FD_OK;
}

static fd_trace_writer *open_trace(const options *o, const row *r, const fd_exec *exec) {
    fd_error err = {0};
    fd_trace_writer *writer;
    fd_trace_options to = fd_trace_defaults(o->out);
    fd_trace_info info = {.producer = "trace_gpu"};
    to.level = (fd_trace_level)r->level;
    must(fd_trace_create(&to, &info, exec->graph, exec->numerics, &writer, &err), &err);
    return writer;
}

static void measure(const options *o, row *r, int at, fd_exec *exec, sink *s, float *logits) {
    fd_error err = {0};
    fd_trace_writer *writer = NULL;
    fd_exec_reset(exec);
    fd_exec_set_observer(exec, (fd_observer){0});
    if (!r->file && o->n_deep > 0) feed(exec, o->n_deep, 512, NULL);
    s->wants = FD_WANT_FINGERPRINT | FD_WANT_HEALTH | (r->level >= FD_TRACE_STATS ? FD_WANT_STATS : 0) |
               (r->level >= FD_TRACE_FULL ? FD_WANT_DATA : 0);
    fd_observer to_memory = {.observe = take, .wants = take_wants, .user = s, .begin = take_begin, .end = take_end};
    char *copy = s->copy;
    if (!r->copy) s->copy = NULL;
    if (r->file) writer = open_trace(o, r, exec);
    if (r->level >= 0) fd_exec_set_observer(exec, writer ? fd_trace_run_observer(writer) : to_memory);
    if (r->file && o->n_deep > 0) feed(exec, o->n_deep, 512, NULL);
    feed(exec, WARM, 1, logits);
    must(fd_exec_flush(exec, &err), &err);
    if (writer) must(fd_trace_flush(writer, &err), &err);
    s->bytes = 0;
    double start = now();
    feed(exec, o->n_decode, 1, logits);
    must(fd_exec_flush(exec, &err), &err);
    if (writer) must(fd_trace_flush(writer, &err), &err);
    double end = now();
    r->rate[at] = o->n_decode / (end - start);
    r->bytes = (double)s->bytes / o->n_decode;
    fd_exec_set_observer(exec, (fd_observer){0});
    s->copy = copy;
    if (!writer) return;
    must(fd_trace_finish(writer, &err), &err);
    r->last[at] = now() - end;
    unlink(o->out);
}

int main(int argc, char **argv) {
    static const struct argp_option known[] = {
        {"decode", 'n', "N", 0, "tokens decoded one by one, a round (128)", 0},
        {"deep", 'd', "N", 0, "after a prompt of N tokens (0)", 0},
        {"rounds", 'r', "N", 0, "rounds (5)", 0},
        {"output", 'o', "FILE.h5", 0, "traces go there (/dev/shm/trace_gpu.h5)", 0},
        {0}};
    static const struct argp parser = {known, parse, "MODEL.gguf", "What observing costs the GPU engine.", 0, 0, 0};
    options o = {.n_decode = 128, .n_round = 5, .out = "/dev/shm/trace_gpu.h5"};
    argp_parse(&parser, argc, argv, 0, NULL, &o);
    fd_error err = {0};
    fd_gguf *gguf;
    fd_graph *graph;
    fd_exec *exec, *by_node;
    open_model_or_skip(o.path, &gguf, &graph);
    fd_engine_options of = {.n_ctx = o.n_deep + WARM + o.n_decode};
    must(fd_engine_new(graph, &of, &exec, &err), &err);
    of.observe_by_node = true;
    must(fd_engine_new(graph, &of, &by_node, &err), &err);
    float *logits = malloc(sizeof *logits * (size_t)graph->hparams.n_vocab);
    sink s = {.room = (size_t)1 << 28};
    s.copy = malloc(s.room);
    if (!logits || !s.copy) return 2;
    memset(s.copy, 1, s.room);

    static row rows[N_ROW] = {{.name = "not observed", .level = -1},
                              {.name = "fingerprint", .level = FD_TRACE_FINGERPRINT},
                              {.name = "stats", .level = FD_TRACE_STATS},
                              {.name = "full", .level = FD_TRACE_FULL},
                              {.name = "full, with a copy", .level = FD_TRACE_FULL, .copy = true},
                              {.name = "full, node by node", .level = FD_TRACE_FULL, .by_node = true},
                              {.name = "fingerprint to the file", .level = FD_TRACE_FINGERPRINT, .file = true},
                              {.name = "stats to the file", .level = FD_TRACE_STATS, .file = true},
                              {.name = "full to the file", .level = FD_TRACE_FULL, .file = true}};
    for (int round = -1; round < o.n_round; round++) /* round -1 warms up */
        for (int i = 0; i < N_ROW; i++)
            measure(&o, &rows[i], round < 0 ? 0 : round, rows[i].by_node ? by_node : exec, &s, logits);

    double plain = median(rows[0].rate, o.n_round);
    printf("%s (%s), %s: decode of %d tokens after %d, with logits; median of %d rounds\n", exec->device, exec->driver,
           o.path, o.n_decode, o.n_deep, o.n_round);
    printf("%-26s %10s %22s %12s %16s %12s\n", "", "tokens/s", "slowest – fastest", "times slower", "MB shown a token",
           "finishing");
    for (int i = 0; i < N_ROW; i++) {
        double rate = median(rows[i].rate, o.n_round);
        printf("%-26s %10.1f %10.1f – %-9.1f %12.3f %16.2f", rows[i].name, rate, rows[i].rate[0],
               rows[i].rate[o.n_round - 1], plain / rate, 1e-6 * rows[i].bytes);
        if (rows[i].file) printf(" %9.1f ms", 1e3 * median(rows[i].last, o.n_round));
        printf("\n");
    }
    show_command(argc, argv);
    free(logits);
    free(s.copy);
    fd_exec_free(by_node);
    fd_exec_free(exec);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
    return 0;
}

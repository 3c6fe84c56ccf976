/* decode_cpu MODEL.gguf: tokens per second of the CPU reference, decode and prefill, beside a llama2.c-style loop in
 * the same process: the two take turns, round by round, and the table gives medians, so that a busy machine is unfair
 * to neither. */
#include <argp.h>
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/llama2c_loop.h"
#include "bench/measure.h"
#include "bench/run.h"
#include "reference_cpu/reference.h"

typedef struct options {
    const char *path;
    int n_decode, n_prefill, n_round, n_thread;
} options;

static int positive(const char *text, struct argp_state *state) {
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < 1 || value > 1 << 20) argp_error(state, "\"%s\": expected a number from 1", text);
    return (int)value;
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    switch (key) {
    case 'n': o->n_decode = positive(arg, state); return 0;
    case 'p': o->n_prefill = positive(arg, state); return 0;
    case 'r': o->n_round = positive(arg, state); return 0;
    case 't': o->n_thread = positive(arg, state); return 0;
    case ARGP_KEY_ARG:
        if (o->path) argp_usage(state);
        o->path = arg;
        return 0;
    case ARGP_KEY_END:
        if (!o->path) argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static _Noreturn void die(const fd_error *err) {
    fprintf(stderr, "decode_cpu: %s\n", err->message);
    exit(fd_exit_status(err->code));
}

static double decode(fd_exec *exec, int n, float *logits) {
    fd_error err = {0};
    fd_exec_reset(exec);
    double start = now();
    for (int i = 0; i < n; i++) {
        int32_t token = token_at(i, exec->graph->hparams.n_vocab);
        fd_batch batch = {.tokens = &token, .n_tok = 1, .pos0 = i, .logits = logits};
        if (fd_exec_forward(exec, &batch, &err) != FD_OK) die(&err);
    }
    return n / (now() - start);
}

static double prefill(fd_exec *exec, const int32_t *tokens, int n, float *logits) {
    fd_error err = {0};
    fd_exec_reset(exec);
    fd_batch batch = {.tokens = tokens, .n_tok = n, .logits = logits};
    double start = now();
    if (fd_exec_forward(exec, &batch, &err) != FD_OK) die(&err);
    return n / (now() - start);
}

static double loop_decode(llama2c *loop, int n) {
    double start = now();
    for (int i = 0; i < n; i++) llama2c_forward(loop, token_at(i, loop->vocab_size), i);
    return n / (now() - start);
}

static double difference(const float *x, const float *y, int64_t n) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        error += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        size += (double)y[i] * y[i];
    }
    return error / size;
}

int main(int argc, char **argv) {
    static const struct argp_option list[] = {{"decode", 'n', "N", 0, "tokens decoded one by one (32)", 0},
                                              {"prefill", 'p', "N", 0, "tokens in one batch (64)", 0},
                                              {"rounds", 'r', "N", 0, "rounds, of which medians are shown (7)", 0},
                                              {"threads", 't', "N", 0, "threads, of both sides (all cores)", 0},
                                              {0}};
    static const struct argp argp = {list, parse, "MODEL.gguf", "Tokens per second of the CPU reference.", 0, 0, 0};
    options o = {NULL, 32, 64, 7, omp_get_num_procs()};
    argp_parse(&argp, argc, argv, 0, 0, &o);

    fd_error err = {0};
    fd_gguf *gguf;
    fd_graph *graph;
    fd_exec *exec;
    llama2c loop;
    omp_set_num_threads(o.n_thread);
    int n_ctx = o.n_decode > o.n_prefill ? o.n_decode : o.n_prefill;
    if (fd_gguf_open(o.path, &gguf, &err) != FD_OK || fd_graph_build(gguf, &graph, NULL, &err) != FD_OK) die(&err);
    fd_reference_options reference = {.numerics = FD_NUMERICS_EXACT, .n_ctx = n_ctx, .n_thread = o.n_thread};
    if (fd_reference_new(graph, &reference, &exec, &err) != FD_OK) die(&err);
    bool peer = llama2c_open(gguf, &graph->hparams, n_ctx, &loop, &err) == FD_OK;
    if (!peer) fprintf(stderr, "decode_cpu: no peer: %s\n", err.message);

    int32_t n_vocab = graph->hparams.n_vocab, *tokens = malloc(sizeof *tokens * (size_t)o.n_prefill);
    float *logits = malloc(sizeof *logits * (size_t)n_vocab);
    double *rate[3], agreement = NAN;
    for (int i = 0; i < 3; i++) rate[i] = calloc((size_t)o.n_round, sizeof *rate[i]);
    for (int i = 0; i < o.n_prefill; i++) tokens[i] = token_at(i, n_vocab);
    for (int round = -1; round < o.n_round; round++) { /* round -1 warms up */
        double found[3] = {peer ? loop_decode(&loop, o.n_decode) : NAN, decode(exec, o.n_decode, logits)};
        if (peer) agreement = difference(logits, loop.logits, n_vocab);
        found[2] = prefill(exec, tokens, o.n_prefill, logits);
        for (int i = 0; i < 3 && round >= 0; i++) rate[i][round] = found[i];
    }

    double best[3], slow[3], fast[3];
    for (int i = 0; i < 3; i++) {
        best[i] = median(rate[i], o.n_round);
        slow[i] = rate[i][0];
        fast[i] = rate[i][o.n_round - 1];
    }
    printf("%s, %d threads, %s; median of %d rounds [slowest – fastest]\n", exec->device, o.n_thread, o.path,
           o.n_round);
    if (peer)
        printf("llama2.c-style loop, decode of %d    %9.1f tokens/s  [%.1f – %.1f]\n", o.n_decode, best[0], slow[0],
               fast[0]);
    printf("reference, decode of %d              %9.1f tokens/s  [%.1f – %.1f]\n", o.n_decode, best[1], slow[1],
           fast[1]);
    printf("reference, prefill of %d             %9.1f tokens/s  [%.1f – %.1f]\n", o.n_prefill, best[2], slow[2],
           fast[2]);
    if (peer)
        printf("decode / loop                        %9.2f   (last logits agree to NMSE %.1g)\n", best[1] / best[0],
               agreement);
    printf("prefill / decode                     %9.2f\n", best[2] / best[1]);
    show_command(argc, argv);

    for (int i = 0; i < 3; i++) free(rate[i]);
    free(tokens);
    free(logits);
    if (peer) llama2c_close(&loop);
    fd_exec_free(exec);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
    return 0;
}

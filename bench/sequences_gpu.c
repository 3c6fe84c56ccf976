/* sequences_gpu MODEL.gguf: tokens per second, in total, of 1, 2, 4, … sequences that the GPU engine decodes in one
 * batch, sampled on the device, in exact numerics or others. Each count is an engine of its own; rounds take turns
 * within it. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/measure.h"
#include "bench/run_gpu.h"
#include "exec/generate.h"

enum { MAX_ROUND = 64, MAX_COUNTS = 16 };

typedef struct options {
    const char *path, *cache; /* the type of exact K and V; NULL: f32 */
    int32_t counts[MAX_COUNTS];
    int n_count, n_decode, n_prompt, n_round;
    fd_numerics numerics;
} options;

static void parse_counts(options *o, char *text) {
    o->n_count = 0;
    for (char *item = text; item && o->n_count < MAX_COUNTS; item = strchr(item, ',') ? strchr(item, ',') + 1 : NULL)
        o->counts[o->n_count++] = atoi(item);
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    switch (key) {
    case 's': parse_counts(o, arg); return 0;
    case 'n': o->n_decode = atoi(arg); return 0;
    case 'p': o->n_prompt = atoi(arg); return 0;
    case 'r': o->n_round = atoi(arg); return 0;
    case 'c': o->cache = arg; return 0;
    case 'N': o->numerics = parse_numerics(arg, state); return 0;
    case ARGP_KEY_ARG: o->path = arg; return 0;
    case ARGP_KEY_END:
        for (int i = 0; i < o->n_count; i++)
            if (o->counts[i] < 1) argp_usage(state);
        if (!o->path || o->n_count < 1 || o->n_decode < 1 || o->n_prompt < 1 || o->n_round < 1 ||
            o->n_round > MAX_ROUND)
            argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The clock starts when every sequence has its first token, and so its prompt behind it. */
typedef struct first_tokens {
    int32_t left;
    double at;
} first_tokens;

static fd_code note_first(void *user, int32_t token, fd_error *err) {
    (void)token, (void)err;
    first_tokens *first = user;
    if (first->left > 0 && --first->left == 0) first->at = now();
    return FD_OK;
}

/* Seconds of the steps after the first tokens. */
static double decode(fd_exec *exec, const options *o, int32_t n) {
    fd_error err = {0};
    fd_generation *runs = calloc((size_t)n, sizeof *runs);
    int32_t *n_done = calloc((size_t)n, sizeof *n_done);
    first_tokens first = {.left = n};
    if (!runs || !n_done) exit(2);
    for (int32_t i = 0; i < n; i++) {
        fd_sampler_options greedy = fd_sampler_defaults();
        runs[i] = (fd_generation){.n_token = o->n_prompt, .n_new = o->n_decode + 1, .user = &first};
        runs[i].on_token = note_first;
        must(fd_sampler_new(&greedy, exec->graph->hparams.n_vocab, &runs[i].sampler, &err), &err);
        runs[i].tokens = malloc(sizeof(int32_t) * (size_t)(o->n_prompt + o->n_decode + 1));
        if (!runs[i].tokens) exit(2);
        for (int32_t k = 0; k < o->n_prompt; k++) runs[i].tokens[k] = token_at(k + 7 * i, exec->graph->hparams.n_vocab);
    }
    fd_exec_reset(exec);
    must(fd_exec_generate_many(exec, runs, n, n_done, &err), &err);
    double seconds = now() - first.at;
    for (int32_t i = 0; i < n; i++) {
        fd_sampler_free(runs[i].sampler);
        free(runs[i].tokens);
    }
    free(runs);
    free(n_done);
    return seconds;
}

int main(int argc, char **argv) {
    static const struct argp_option known[] = {{"sequences", 's', "N,N,…", 0, "how many at once (1,2,4,8,16,32)", 0},
                                               {"decode", 'n', "N", 0, "tokens of each sequence, a round (64)", 0},
                                               {"prompt", 'p', "N", 0, "tokens of each prompt (16)", 0},
                                               {"rounds", 'r', "N", 0, "rounds (5)", 0},
                                               {"numerics", 'N', "exact|q8act|fast", 0, "default exact", 0},
                                               {"cache-type", 'c', "f32|f16", 0, "of exact K and V (f32)", 0},
                                               {0}};
    static const struct argp parser = {known, parse, "MODEL.gguf", "Tokens per second of sequences in one batch.", 0,
                                       0,     0};
    options o = {.counts = {1, 2, 4, 8, 16, 32}, .n_count = 6, .n_decode = 64, .n_prompt = 16, .n_round = 5};
    argp_parse(&parser, argc, argv, 0, NULL, &o);
    fd_error err = {0};
    fd_gguf *gguf;
    fd_graph *graph;
    open_model_or_skip(o.path, &gguf, &graph);
    if (o.cache) must(fd_graph_set_kv_types(graph, o.cache, &err), &err);
    for (int c = 0; c < o.n_count; c++) {
        fd_exec *exec;
        double rate[MAX_ROUND];
        int32_t n = o.counts[c];
        fd_engine_options several = {.n_ctx = o.n_prompt + o.n_decode, .n_seq = n, .numerics = o.numerics};
        must(fd_engine_new(graph, &several, &exec, &err), &err);
        if (c == 0)
            printf("%s (%s), %s, %s, greedy on the device; median of %d rounds [slowest – fastest]\n", exec->device,
                   exec->driver, o.path, fd_exec_numerics_name(exec), o.n_round);
        for (int r = -1; r < o.n_round; r++) { /* round -1 warms up */
            double seconds = decode(exec, &o, n);
            rate[r < 0 ? 0 : r] = (double)n * o.n_decode / seconds;
        }
        double middle = median(rate, o.n_round);
        printf("%3d sequences %10.1f tokens/s [%.1f – %.1f]\n", n, middle, rate[0], rate[o.n_round - 1]);
        fd_exec_free(exec);
    }
    show_command(argc, argv);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
    return 0;
}

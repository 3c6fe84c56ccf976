/* made_check [--match TEXT] [--prefill N] [--decode N] [--cache-type TYPE]: the GPU engine against the CPU reference, bit by bit, on the
 * made models of tests/ops/made_models.txt whose architecture or options hold TEXT: every architecture, in F32, Q8_0 and
 * Q4_K. Every node of a prefill and of decode steps, both backends observed; then unobserved, fused, in other batches.
 *
 * Exit status: 0 equal, 1 a difference, 2 unusable input, 77 no device. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "reference_cpu/reference.h"
#include "tests/gpu/check_run.h"
#include "tests/gpu/gpu_check.h"
#include "tests/ops/made_rows.h"

typedef struct options {
    const char *match, *cache; /* NULL: all; f32 */
    int n_prefill, n_decode;
} options;

static error_t parse(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    switch (key) {
    case 'm': o->match = arg; return 0;
    case 'c': o->cache = arg; return 0;
    case 'p': o->n_prefill = atoi(arg); return 0;
    case 'd': o->n_decode = atoi(arg); return 0;
    case ARGP_KEY_END:
        if (o->n_prefill < 1 || o->n_decode < 0) argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Checks that failed. */
static int32_t check_row(const made_row *row, const options *o) {
    fd_error err = {0};
    fd_made_model what;
    fd_gguf *gguf;
    fd_graph *graph;
    fd_exec *cpu, *gpu;
    check c = {.n_prefill = o->n_prefill, .n_token = o->n_prefill + o->n_decode, .quiet = true, .started = now()};
    double started = c.started;
    must(made_row_describe(row, &what, &err), &err);
    must(fd_made_model_open(&what, &gguf, &err), &err);
    must(fd_graph_build(gguf, &graph, NULL, &err), &err);
    fd_graph_set_context(graph, c.n_token);
    if (o->cache && fd_graph_set_kv_types(graph, o->cache, &err) != FD_OK)
        printf("     %s: as it is: %s\n", row->arch, err.message);
    c.graph = graph;
    open_check(&c);
    must(fd_reference_new(graph, &(fd_reference_options){.n_ctx = c.n_token}, &cpu, &err), &err);
    must(fd_engine_new(graph, &(fd_engine_options){.n_ctx = c.n_token}, &gpu, &err), &err);
    check_lockstep(&c, "decode as it runs", cpu, gpu, NULL);
    check_untraced(&c, gpu);
    printf("%-4s %s %s %s %s: %d nodes (%.2f s)\n", c.n_failed ? "FAIL" : "ok", row->arch, row->type, row->keys,
           row->with, graph->n_node, now() - started);
    fflush(stdout);
    fd_exec_free(gpu);
    fd_exec_free(cpu);
    close_check(&c);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
    return c.n_failed;
}

int main(int argc, char **argv) {
    static const struct argp_option known[] = {{"match", 'm', "TEXT", 0, "of the row (any)", 0},
                                               {"prefill", 'p', "N", 0, "tokens of the first batch (13)", 0},
                                               {"decode", 'd', "N", 0, "tokens after it, one at a time (5)", 0},
                                               {"cache-type", 'c', "TYPE", 0, "of K and V, in both (f32)", 0},
                                               {0}};
    static const struct argp parser = {
        known, parse, NULL, "Compares the GPU engine with the CPU reference on made models.", 0, 0, 0};
    static made_row rows[MADE_MAX_ROWS];
    options o = {.n_prefill = 13, .n_decode = 5};
    char why[256];
    int n_failed = 0, n_run = 0, n;
    argp_parse(&parser, argc, argv, 0, NULL, &o);
    if (!fd_engine_available(why, sizeof why)) {
        printf("SKIPPED: %s\n", why);
        return 77;
    }
    n = made_rows_read(rows);
    for (int i = 0; i < n; i++) {
        if (o.match && !strstr(rows[i].arch, o.match) && !strstr(rows[i].type, o.match) &&
            !strstr(rows[i].keys, o.match))
            continue;
        n_failed += check_row(&rows[i], &o) != 0;
        n_run++;
    }
    printf("%d of %d models: %s\n", n_run - n_failed, n_run, n_failed ? "DIFFERENT" : "EQUAL");
    return n_run == 0 ? 2 : n_failed != 0;
}

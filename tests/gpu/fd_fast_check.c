/* fd_fast_check MODEL.gguf [--prefill N] [--decode N] [--long N] [--int8]: the GPU engine's fast numerics against the CPU
 * reference's exact ones, and against themselves.
 *
 *   near      logits of a prefill of N tokens and N decode steps: normalised mean square error within LIMIT, of a model
 *             with products of int8 blocks LIMIT_INT8; --int8: with all that can be
 *   mutant    the same with RoPE's other pairs in one layer: beyond the limit
 *   traced    every node shown once and within the limit of the reference's; the logits equal the untraced run's bits
 *   weights   of attention sum to 1 and are 0 where nothing is seen
 *   twice     the same bits again
 *   experts   a row that chooses other ones does so by a margin that rounding explains; neither it nor later positions
 *             are compared from there on
 *   last row  a prompt's last logits without the others'
 *   sequences several in one batch, of different lengths: each has the bits it has alone, and they are near
 *   long      a prompt longer than the engine runs at once, traced and not: the same bits (--long 0: left out)
 *
 * Exit status: 0 all hold, 1 one does not, 2 unusable input, 77 no device. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "faults/faults.h"
#include "reference_cpu/reference.h"
#include "tests/gpu/check_run.h"
#include "tests/gpu/fast_check.h"

typedef struct options {
    const char *path;
    int n_prefill, n_decode, n_long;
    fd_int8 int8;
} options;

static error_t parse(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    switch (key) {
    case 'p': o->n_prefill = atoi(arg); return 0;
    case 'd': o->n_decode = atoi(arg); return 0;
    case 'l': o->n_long = atoi(arg); return 0;
    case '8': o->int8 = FD_INT8_ALWAYS; return 0;
    case ARGP_KEY_ARG: o->path = arg; return 0;
    case ARGP_KEY_END:
        if (!o->path || o->n_prefill < 1 || o->n_decode < 0) argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Prefill, then one token at a time. */
static void run(fd_exec *exec, const check *c, float *logits) {
    fd_error err = {0};
    fd_exec_reset(exec);
    memset(logits, 0xff, sizeof *logits * n_logits(c));
    for (int32_t pos = 0, n = c->n_prefill; pos < c->n_token; pos += n, n = 1) {
        fd_batch batch = {.tokens = c->tokens + pos,
                          .n_tok = n,
                          .pos0 = pos,
                          .all_logits = true,
                          .logits = logits + (size_t)pos * (size_t)c->graph->hparams.n_vocab};
        must(fd_exec_forward(exec, &batch, &err), &err);
    }
}

static fd_exec *fast_engine(const fd_graph *graph, int32_t n_ctx, fd_int8 int8) {
    fd_error err = {0};
    fd_exec *exec;
    fd_engine_options o = {.n_ctx = n_ctx, .numerics = FD_NUMERICS_FAST, .int8 = int8};
    must(fd_engine_new(graph, &o, &exec, &err), &err);
    return exec;
}

static double distance_with(check *c, const fd_graph *graph, int32_t n_ctx, fd_int8 int8) {
    fd_exec *exec = fast_engine(graph, n_ctx, int8);
    run(exec, c, c->again);
    fd_exec_free(exec);
    return c->same_until ? nmse(c->again, c->exact, (int64_t)c->same_until * c->graph->hparams.n_vocab) : NAN;
}

static void check_mutant(check *c, int32_t n_ctx, fd_int8 int8) {
    fd_error err = {0};
    fd_graph *graph;
    fd_fault_owner *owner = NULL;
    must(fd_graph_clone(c->graph, &graph, &err), &err);
    if (fd_fault_apply("rope_pairing@0", graph, &owner, &err) == FD_OK) {
        double z = distance_with(c, graph, n_ctx, int8);
        printf("  NMSE %.2e\n", z);
        verdict(c, "mutant: RoPE's other pairs in layer 0 are beyond the limit", !(z <= c->limit));
    } else {
        printf("  no such fault in this model: %s\n", err.message);
    }
    fd_graph_free(graph);
    fd_fault_owner_free(owner);
}

static fd_code ignore(void *user, const fd_observation *seen, fd_error *err) {
    (void)err, (void)seen;
    ++*(int64_t *)user;
    return FD_OK;
}

static void check_long(check *c, int32_t n, fd_int8 int8) {
    fd_error err = {0};
    fd_exec *exec = fast_engine(c->graph, n, int8);
    int32_t n_vocab = c->graph->hparams.n_vocab;
    int64_t n_seen = 0;
    int32_t *tokens = room((size_t)n, sizeof *tokens);
    float *plain = room((size_t)n_vocab, sizeof *plain), *traced = room((size_t)n_vocab, sizeof *traced);
    for (int32_t i = 0; i < n; i++) tokens[i] = c->tokens[i % c->n_token];
    fd_batch batch = {.tokens = tokens, .n_tok = n, .logits = plain};
    must(fd_exec_forward(exec, &batch, &err), &err);
    fd_exec_reset(exec);
    fd_exec_set_observer(exec, (fd_observer){.observe = ignore, .user = &n_seen});
    batch.logits = traced;
    must(fd_exec_forward(exec, &batch, &err), &err);
    bool finite = true;
    for (int32_t i = 0; i < n_vocab; i++) finite = finite && isfinite(plain[i]);
    verdict(c, "long: a prompt in pieces, traced and not: the same bits",
            n_seen == c->graph->n_node && finite && same_bits("logits", plain, traced, (size_t)n_vocab));
    fd_exec_free(exec);
    free(tokens);
    free(plain);
    free(traced);
}

static void check_last_row(check *c, fd_exec *gpu) {
    fd_error err = {0};
    size_t n_vocab = (size_t)c->graph->hparams.n_vocab;
    fd_exec_reset(gpu);
    fd_batch batch = {.tokens = c->tokens, .n_tok = c->n_prefill, .logits = c->again};
    must(fd_exec_forward(gpu, &batch, &err), &err);
    verdict(c, "last row alone: its logits",
            same_bits("logits", c->fast + (size_t)(c->n_prefill - 1) * n_vocab, c->again, n_vocab));
}

int main(int argc, char **argv) {
    static const struct argp_option known[] = {{"prefill", 'p', "N", 0, "tokens of the first batch (70)", 0},
                                               {"decode", 'd', "N", 0, "tokens after it, one at a time (20)", 0},
                                               {"long", 'l', "N", 0, "tokens of a prompt in pieces (1100; 0: none)", 0},
                                               {"int8", '8', NULL, 0, "every product that can be of int8 blocks is", 0},
                                               {0}};
    static const struct argp parser = {
        known, parse, "MODEL.gguf", "Compares fast numerics on the GPU with exact ones on the CPU.", 0, 0, 0};
    options o = {.n_prefill = 70, .n_decode = 20, .n_long = 1100};
    argp_parse(&parser, argc, argv, 0, NULL, &o);
    fd_error err = {0};
    fd_gguf *gguf;
    fd_graph *graph;
    fd_exec *cpu, *gpu;
    open_model_or_skip(o.path, &gguf, &graph);
    check c = {.graph = graph, .n_prefill = o.n_prefill, .n_token = o.n_prefill + o.n_decode};
    c.same_until = c.n_token;
    size_t n_node = (size_t)graph->n_node;
    c.tokens = room((size_t)c.n_token, sizeof *c.tokens);
    c.exact = room(n_logits(&c), sizeof *c.exact);
    c.fast = room(n_logits(&c), sizeof *c.fast);
    c.again = room(n_logits(&c), sizeof *c.again);
    c.seen = room(n_node, sizeof *c.seen);
    c.error = room(n_node, sizeof *c.error);
    c.power = room(n_node, sizeof *c.power);
    fill_tokens(c.tokens, c.n_token, graph->hparams.n_vocab);

    must(fd_reference_new(graph, &(fd_reference_options){.n_ctx = c.n_token}, &cpu, &err), &err);
    gpu = fast_engine(graph, c.n_token, o.int8);
    c.limit = strcmp(fd_exec_numerics_name(gpu), "fast-int8") == 0 ? LIMIT_INT8 : LIMIT;
    printf("%s: %s, %d nodes, prefill %d, decode %d, %s numerics, K and V %s\n", o.path, graph->hparams.arch,
           graph->n_node, o.n_prefill, o.n_decode, fd_exec_numerics_name(gpu), fd_exec_kv_type(gpu));
    run(gpu, &c, c.fast);
    check_traced(&c, cpu, gpu);
    size_t n_vocab = (size_t)graph->hparams.n_vocab, at = (size_t)c.n_prefill * n_vocab,
           same = (size_t)c.same_until * n_vocab;
    double prefill = same ? nmse(c.fast, c.exact, (int64_t)(same < at ? same : at)) : 0,
           decode = same > at ? nmse(c.fast + at, c.exact + at, (int64_t)(same - at)) : 0;
    printf("  NMSE of logits: prefill %.2e, decode %.2e\n", prefill, decode);
    verdict(&c, "near: logits", prefill <= (o.n_prefill > 1 ? LIMIT : c.limit) && decode <= c.limit);
    bool twice = true; /* and as a CUDA graph, captured and replayed */
    for (int i = 0; i < 3; i++) {
        run(gpu, &c, c.again);
        twice = twice && same_bits("logits", c.fast, c.again, n_logits(&c));
    }
    verdict(&c, "twice: every further run equals the first", twice);
    check_last_row(&c, gpu);
    if (c.n_token > 1)
        for (int32_t n = 2; n <= 9; n += n < 6 ? 4 : 3) check_sequences(&c, n, o.int8); /* 6: halves if rows are long */
    fd_exec_free(gpu);
    check_mutant(&c, c.n_token, o.int8);
    if (o.n_long > 0) check_long(&c, o.n_long, o.int8);
    printf("%s\n", c.n_failed ? "FAILED" : "HOLDS");

    fd_exec_free(cpu);
    for (size_t i = 0; i < n_node; i++) free(c.seen[i].data);
    free(c.seen);
    free(c.error);
    free(c.power);
    free(c.exact);
    free(c.fast);
    free(c.again);
    free(c.tokens);
    fd_graph_free(graph);
    fd_gguf_close(gguf);
    return c.n_failed != 0;
}

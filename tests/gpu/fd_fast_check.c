/* fd_fast_check MODEL.gguf [--prefill N] [--decode N] [--long N]: the GPU engine's fast numerics against the CPU
 * reference's exact ones, and against themselves.
 *
 *   near      logits of a prefill of N tokens and N decode steps: normalised mean square error within LIMIT
 *   mutant    the same with RoPE's other pairs in one layer: beyond LIMIT
 *   traced    every node shown once and within LIMIT of the reference's; the logits equal the untraced run's bits
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
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "faults/faults.h"
#include "numerics/contract.h"
#include "reference_cpu/reference.h"
#include "tests/gpu/check_run.h"

enum { SKIPPED = 77 };
/* Factors are off by 2^-12 on average, errors of layers add up; the worst logits seen had NMSE 2.5e-6, the worst node 5.3e-6. */
static const double LIMIT = 1e-4;

typedef struct options {
    const char *path;
    int n_prefill, n_decode, n_long;
} options;

typedef struct rows { /* a node's tensor over all positions fed */
    float *data;
    size_t n;
} rows;

typedef struct check {
    const fd_graph *graph;
    int32_t n_prefill, n_token;
    int32_t *tokens;
    float *exact, *fast, *again; /* logits, [n_token, n_vocab] */
    rows *seen;                  /* [n_node] of the reference, one forward call */
    double *error, *power;       /* [n_node] sums over calls */
    int32_t n_shown, n_wrong, n_bad_weight, n_failed;
    int32_t same_until; /* first position whose experts differ; n_token: none */
    bool wide_margin;   /* and by more than rounding explains */
} check;

static error_t parse(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    switch (key) {
    case 'p': o->n_prefill = atoi(arg); return 0;
    case 'd': o->n_decode = atoi(arg); return 0;
    case 'l': o->n_long = atoi(arg); return 0;
    case ARGP_KEY_ARG: o->path = arg; return 0;
    case ARGP_KEY_END:
        if (!o->path || o->n_prefill < 1 || o->n_decode < 0) argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void *room(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    if (!p) {
        printf("FAIL: out of memory\n");
        exit(2);
    }
    return p;
}

static void verdict(check *c, const char *what, bool holds) {
    printf("%-4s %s\n", holds ? "ok" : "FAIL", what);
    fflush(stdout);
    c->n_failed += !holds;
}

static size_t n_logits(const check *c) {
    return (size_t)c->n_token * (size_t)c->graph->hparams.n_vocab;
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

/* Mean square error over the mean square; NaN where either has one. */
static double nmse(const float *expected, const float *found, size_t n) {
    double error = 0, power = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)found[i] - (double)expected[i];
        error += d * d;
        power += (double)expected[i] * (double)expected[i];
    }
    return error / power;
}

static bool same_bits(const char *what, const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (fd_bits32(a[i]) != fd_bits32(b[i])) {
            printf("  %s: element %zu: %.9g, expected %.9g\n", what, i, (double)b[i], (double)a[i]);
            return false;
        }
    return true;
}

/* ---- traced ---- */

static fd_code keep(void *user, const fd_observation *seen, fd_error *err) {
    (void)err;
    check *c = user;
    rows *r = &c->seen[seen->node->id];
    size_t n = (size_t)(seen->row_stride * seen->n_pos);
    free(r->data);
    r->data = room(n, sizeof *r->data);
    r->n = n;
    memcpy(r->data, seen->data, n * sizeof *r->data);
    return FD_OK;
}

static void look_at_weights(check *c, const fd_observation *seen) {
    const float *w = seen->data;
    int32_t n_kv = seen->pos0 + seen->n_pos;
    const fd_node *scores = &seen->graph->nodes[seen->node->input[0]];
    bool sinks = seen->node->weight[0] >= 0; /* take their share of the sum */
    for (int32_t r = 0; r < seen->n_pos; r++)
        for (int32_t h = 0; h < seen->node->shape[0]; h++, w += n_kv) {
            int32_t pos = seen->pos0 + r, first = fd_node_first_seen(scores, pos);
            double sum = 0;
            bool hidden = true;
            for (int32_t t = 0; t < n_kv; t++) {
                sum += (double)w[t];
                if ((t > pos || t < first) && w[t] != 0.0f) hidden = false;
            }
            bool whole = sinks ? sum > 0 && sum < 1.0001 : fabs(sum - 1) < 1e-4;
            if (!whole || !hidden) c->n_bad_weight++;
        }
}

/* Ids of experts, rank by rank, the larger first: where two change places their routers' values must be near. */
static void look_at_choice(check *c, const fd_observation *seen) {
    const fd_node *from = &seen->graph->nodes[seen->node->input[0]];
    int64_t n = fd_node_row_stride(from, 0), k = seen->row_stride;
    for (int32_t r = 0; r < seen->n_pos && seen->pos0 + r < c->same_until; r++) {
        const float *value = c->seen[from->id].data + r * n, *now = (const float *)seen->data + r * k,
                    *then = c->seen[seen->node->id].data + r * k;
        float largest = 0;
        for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(value[i]));
        for (int64_t i = 0; i < k; i++) {
            if (now[i] == then[i]) continue;
            int64_t a = fd_expert_of((double)now[i], n), b = fd_expert_of((double)then[i], n);
            if (a < 0 || b < 0 || !(fabsf(value[a] - value[b]) <= 0.01f * largest)) c->wide_margin = true;
            c->same_until = seen->pos0 + r;
        }
    }
}

static fd_code compare(void *user, const fd_observation *seen, fd_error *err) {
    (void)err;
    check *c = user;
    int32_t id = seen->node->id;
    const float *found = seen->data, *expected = c->seen[id].data;
    size_t n = (size_t)(seen->row_stride * seen->n_pos);
    c->n_shown++;
    if (n != c->seen[id].n || seen->dtype != FD_F32) {
        c->n_wrong++;
        return FD_OK;
    }
    if (seen->node->op == FD_OP_TOP_K) look_at_choice(c, seen);
    int32_t same = c->same_until - seen->pos0;
    n = same < 0 ? 0 : same < seen->n_pos ? (size_t)same * (size_t)seen->row_stride : n;
    for (size_t i = 0; i < n; i++) {
        if (isinf(expected[i]) && expected[i] == found[i]) continue;
        double d = (double)found[i] - (double)expected[i];
        c->error[id] += d * d;
        c->power[id] += (double)expected[i] * (double)expected[i];
    }
    if (seen->node->op == FD_OP_ATTN_SOFTMAX) look_at_weights(c, seen);
    return FD_OK;
}

static void check_traced(check *c, fd_exec *cpu, fd_exec *gpu) {
    int32_t n_node = c->graph->n_node, n_call = c->n_token - c->n_prefill + 1, worst = 0, n_far = 0;
    fd_exec_reset(cpu);
    fd_exec_reset(gpu);
    fd_exec_set_observer(cpu, (fd_observer){.observe = keep, .user = c});
    fd_exec_set_observer(gpu, (fd_observer){.observe = compare, .user = c});
    for (int32_t pos = 0, n = c->n_prefill; pos < c->n_token; pos += n, n = 1) {
        fd_error err = {0};
        size_t at = (size_t)pos * (size_t)c->graph->hparams.n_vocab;
        fd_batch batch = {
            .tokens = c->tokens + pos, .n_tok = n, .pos0 = pos, .all_logits = true, .logits = c->exact + at};
        must(fd_exec_forward(cpu, &batch, &err), &err);
        batch.logits = c->again + at;
        must(fd_exec_forward(gpu, &batch, &err), &err);
    }
    fd_exec_set_observer(cpu, (fd_observer){0});
    fd_exec_set_observer(gpu, (fd_observer){0});
    for (int32_t i = 0; i < n_node; i++) {
        double z = c->error[i] / c->power[i];
        if (c->error[i] == 0) z = 0;
        if (!(z <= LIMIT)) {
            if (n_far++ < 5) printf("  %s: NMSE %.2e\n", c->graph->nodes[i].name, z);
        }
        if (!(z <= c->error[worst] / c->power[worst])) worst = i;
    }
    printf("  worst node %s: NMSE %.2e; %d of %d shown\n", c->graph->nodes[worst].name,
           c->error[worst] / c->power[worst], c->n_shown, n_node * n_call);
    verdict(c, "traced: every node shown once, in its shape", c->n_shown == n_node * n_call && c->n_wrong == 0);
    verdict(c, "traced: every node near the reference's", n_far == 0);
    verdict(c, "traced: logits equal the untraced run's bits", same_bits("logits", c->fast, c->again, n_logits(c)));
    if (c->same_until < c->n_token) printf("  other experts at position %d\n", c->same_until);
    verdict(c, "experts: other ones only where their values are near", !c->wide_margin);
    verdict(c, "weights: sum to 1, 0 where nothing is seen", c->n_bad_weight == 0);
}

/* ---- the others ---- */

static double distance_with(check *c, const fd_graph *graph, int32_t n_ctx) {
    fd_error err = {0};
    fd_exec *exec;
    must(fd_engine_new(graph, &(fd_engine_options){.n_ctx = n_ctx, .numerics = FD_NUMERICS_FAST}, &exec, &err), &err);
    run(exec, c, c->again);
    fd_exec_free(exec);
    return c->same_until ? nmse(c->exact, c->again, (size_t)c->same_until * (size_t)c->graph->hparams.n_vocab) : NAN;
}

static void check_mutant(check *c, int32_t n_ctx) {
    fd_error err = {0};
    fd_graph *graph;
    fd_fault_owner *owner = NULL;
    must(fd_graph_clone(c->graph, &graph, &err), &err);
    if (fd_fault_apply("rope_pairing@0", graph, &owner, &err) == FD_OK) {
        double z = distance_with(c, graph, n_ctx);
        printf("  NMSE %.2e\n", z);
        verdict(c, "mutant: RoPE's other pairs in layer 0 are beyond the limit", !(z <= LIMIT));
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

static void check_long(check *c, int32_t n) {
    fd_error err = {0};
    fd_exec *exec;
    int32_t n_vocab = c->graph->hparams.n_vocab;
    int64_t n_seen = 0;
    int32_t *tokens = room((size_t)n, sizeof *tokens);
    float *plain = room((size_t)n_vocab, sizeof *plain), *traced = room((size_t)n_vocab, sizeof *traced);
    for (int32_t i = 0; i < n; i++) tokens[i] = c->tokens[i % c->n_token];
    must(fd_engine_new(c->graph, &(fd_engine_options){.n_ctx = n, .numerics = FD_NUMERICS_FAST}, &exec, &err), &err);
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

/* ---- several sequences ---- */

static int32_t length_of(const check *c, int32_t sequence) {
    return 1 + (c->n_prefill + 7 * sequence) % (c->n_token - 1);
}

/* The sequence's prompt, then one token at a time: logits of positions from its prompt's last on. */
static void run_alone(fd_exec *exec, const check *c, int32_t sequence, float *logits) {
    fd_error err = {0};
    fd_exec_reset(exec);
    for (int32_t pos = 0, n = length_of(c, sequence); pos < c->n_token; pos += n, n = 1) {
        fd_batch batch = {.tokens = c->tokens + pos, .n_tok = n, .pos0 = pos};
        batch.logits = logits + (size_t)(pos + n - 1) * (size_t)c->graph->hparams.n_vocab;
        must(fd_exec_forward(exec, &batch, &err), &err);
    }
}

/* All sequences' prompts, then a token of each that has room, the last one first, so that no row is its sequence. */
static void run_together(fd_exec *exec, const check *c, int32_t n, float *logits) {
    fd_error err = {0};
    size_t n_vocab = (size_t)c->graph->hparams.n_vocab;
    int32_t *sequences = room((size_t)n, sizeof *sequences), *tokens = room((size_t)n, sizeof *tokens);
    float *step = room((size_t)n * n_vocab, sizeof *step);
    for (int32_t i = 0; i < n; i++) {
        fd_batch prompt = {.tokens = c->tokens, .n_tok = length_of(c, i)};
        prompt.logits = logits + (size_t)i * n_logits(c) + (size_t)(length_of(c, i) - 1) * n_vocab;
        must(fd_exec_select(exec, i, &err), &err);
        must(fd_exec_forward(exec, &prompt, &err), &err);
    }
    for (;;) {
        int32_t n_row = 0;
        for (int32_t i = n - 1; i >= 0; i--) {
            if (fd_exec_past(exec, i) >= c->n_token) continue;
            sequences[n_row] = i;
            tokens[n_row++] = c->tokens[fd_exec_past(exec, i)];
        }
        if (n_row == 0) break;
        fd_decode decode = {.n = n_row, .sequences = sequences, .tokens = tokens, .logits = step};
        must(fd_exec_decode(exec, &decode, &err), &err);
        for (int32_t row = 0; row < n_row; row++) {
            size_t at = (size_t)sequences[row] * n_logits(c) + (size_t)(fd_exec_past(exec, sequences[row]) - 1) * n_vocab;
            memcpy(logits + at, step + (size_t)row * n_vocab, n_vocab * sizeof *step);
        }
    }
    free(sequences);
    free(tokens);
    free(step);
}

static void check_sequences(check *c, int32_t n) {
    fd_error err = {0};
    fd_exec *exec;
    char what[96];
    size_t n_vocab = (size_t)c->graph->hparams.n_vocab;
    float *found = room((size_t)n * n_logits(c), sizeof *found);
    fd_engine_options several = {.n_ctx = c->n_token, .n_seq = n, .numerics = FD_NUMERICS_FAST};
    must(fd_engine_new(c->graph, &several, &exec, &err), &err);
    run_together(exec, c, n, found);
    bool same = true, seen = true;
    int32_t n_far = 0;
    double worst = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t first = length_of(c, i) - 1;
        size_t from = (size_t)first * n_vocab, count = (size_t)(c->n_token - first) * n_vocab;
        const float *own = found + (size_t)i * n_logits(c);
        run_alone(exec, c, i, c->again);
        same = same && same_bits("logits", c->again + from, own + from, count);
        /* The data tell positions apart, so rows that changed places would show. */
        for (size_t k = 0; k + n_vocab < count; k += n_vocab)
            seen = seen && memcmp(own + from + k, own + from + k + n_vocab, n_vocab * sizeof *own) != 0;
        for (int32_t pos = first; pos < c->same_until; pos++) {
            double z = nmse(c->exact + (size_t)pos * n_vocab, own + (size_t)pos * n_vocab, n_vocab);
            n_far += !(z <= LIMIT);
            worst = fmax(worst, z);
        }
    }
    printf("  worst row: NMSE %.2e\n", worst);
    snprintf(what, sizeof what, "%d sequences: each one's logits are those it has alone", n);
    verdict(c, what, same && seen);
    snprintf(what, sizeof what, "%d sequences: near the reference's", n);
    verdict(c, what, n_far == 0);
    fd_exec_free(exec);
    free(found);
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
                                               {0}};
    static const struct argp parser = {
        known, parse, "MODEL.gguf", "Compares fast numerics on the GPU with exact ones on the CPU.", 0, 0, 0};
    options o = {.n_prefill = 70, .n_decode = 20, .n_long = 1100};
    argp_parse(&parser, argc, argv, 0, NULL, &o);
    char why[256];
    if (!fd_engine_available(why, sizeof why)) {
        printf("SKIPPED: %s\n", why);
        return SKIPPED;
    }
    fd_error err = {0};
    fd_gguf *gguf;
    fd_graph *graph;
    fd_exec *cpu, *gpu;
    must(fd_gguf_open(o.path, &gguf, &err), &err);
    must(fd_graph_build(gguf, &graph, NULL, &err), &err);
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
    must(fd_engine_new(graph, &(fd_engine_options){.n_ctx = c.n_token, .numerics = FD_NUMERICS_FAST}, &gpu, &err),
         &err);
    printf("%s: %s, %d nodes, prefill %d, decode %d, %s numerics, K and V %s\n", o.path, graph->hparams.arch,
           graph->n_node, o.n_prefill, o.n_decode, fd_exec_numerics_name(gpu), fd_exec_kv_type(gpu));
    run(gpu, &c, c.fast);
    check_traced(&c, cpu, gpu);
    size_t n_vocab = (size_t)graph->hparams.n_vocab, at = (size_t)c.n_prefill * n_vocab,
           same = (size_t)c.same_until * n_vocab;
    double prefill = same ? nmse(c.exact, c.fast, same < at ? same : at) : 0,
           decode = same > at ? nmse(c.exact + at, c.fast + at, same - at) : 0;
    printf("  NMSE of logits: prefill %.2e, decode %.2e\n", prefill, decode);
    verdict(&c, "near: logits", prefill <= LIMIT && decode <= LIMIT);
    bool twice = true; /* and as a CUDA graph, captured and replayed */
    for (int i = 0; i < 3; i++) {
        run(gpu, &c, c.again);
        twice = twice && same_bits("logits", c.fast, c.again, n_logits(&c));
    }
    verdict(&c, "twice: every further run equals the first", twice);
    check_last_row(&c, gpu);
    if (c.n_token > 1)
        for (int32_t n = 2; n <= 9; n += 7) check_sequences(&c, n);
    fd_exec_free(gpu);
    check_mutant(&c, c.n_token);
    if (o.n_long > 0) check_long(&c, o.n_long);
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

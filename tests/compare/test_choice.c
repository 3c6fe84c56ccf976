/* Near ties that rounding turns over, and runs that go different ways after one. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "compare/attribute/argmax_flip.h"
#include "tests/compare/replay_bench.h"
#include "tests/compare/said.h"

/* ---- margins ---- */

typedef struct margin_case {
    const char *name;
    double ref[3], cand[3], tau[2]; /* τ of every logit of each side */
    int32_t n_known, n_flip, n_noise;
} margin_case;

static const margin_case cases[] = {
    {"the same best token", {1, 2, 0}, {1, 3, 0}, {0, 0}, 1, 0, 0},
    {"a near tie", {1.00, 1.01, 0}, {1.01, 1.00, 0}, {0.01, 0}, 1, 1, 1},
    {"a margin beyond one side's τ", {1.00, 1.01, 0}, {1.01, 1.00, 0}, {0.004, 0}, 1, 1, 0},
    {"both sides' τ together", {1.00, 1.01, 0}, {1.01, 1.00, 0}, {0.003, 0.003}, 1, 1, 1},
    {"a margin beyond τ on the candidate's side alone", {1.00, 1.01, 0}, {9.00, 1.00, 0}, {0.01, 0.01}, 1, 1, 0},
    {"no τ at all", {1.00, 1.01, 0}, {1.01, 1.00, 0}, {0, 0}, 1, 1, 0},
    {"a τ that is no number", {1.00, 1.01, 0}, {1.01, 1.00, 0}, {NAN, 0}, 1, 1, 0},
    {"a NaN among the logits", {1.00, 1.01, NAN}, {1.01, 1.00, 0}, {1, 1}, 0, 0, 0},
    {"an exact tie: the lowest id", {1, 1, 0}, {1, 1, 0}, {0, 0}, 1, 0, 0},
};

static void add_row(fd_flips *flips, const fd_node *node, int32_t pos, int64_t stride, const double *candidate,
                    const double *tau, const double *reference) {
    fd_flips_add(flips, &(fd_attribution_row){.node = node,
                                              .pos = pos,
                                              .stride = stride,
                                              .candidate = candidate,
                                              .replayed = candidate,
                                              .tau = tau,
                                              .reference = reference});
}

Test(choice, a_flip_is_noise_within_both_sides_tau_alone) {
    bench b = open_model(models[0]);
    fd_trace *trace = record(b.graph, (recording){.n_prompt = 1, .tensors = "logits"});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const margin_case *c = &cases[i];
        fd_flips flips;
        fd_error err = {0};
        fd_verdict v = {0};
        must(fd_flips_open(b.graph, 1, &flips, &err), &err);
        const fd_node *logits = &b.graph->nodes[flips.logits];
        double tau[2][3];
        for (int s = 0; s < 2; s++)
            for (int k = 0; k < 3; k++) tau[s][k] = c->tau[s];
        flips.side = 1;
        add_row(&flips, logits, 0, 3, c->cand, tau[1], c->ref);
        add_row(&flips, logits, 1, 3, c->cand, tau[1], c->ref);            /* past the common positions */
        add_row(&flips, &b.graph->nodes[0], 0, 3, c->ref, tau[1], c->ref); /* another node */
        flips.side = 0;
        add_row(&flips, logits, 0, 3, c->ref, tau[0], c->cand);
        fd_flips_report(&flips, trace, trace, &v);
        cr_expect_eq(v.flip.n_pos, c->n_known, "%s", c->name);
        cr_expect_eq(v.flip.n_flip, c->n_flip, "%s", c->name);
        cr_expect_eq(v.flip.n_flip_noise, c->n_noise, "%s", c->name);
        cr_expect(!v.flip.fed);
        fd_flips_close(&flips);
    }
    fd_trace_close(trace);
    close_model(&b);
}

/* ---- runs that went different ways ---- */

/* Decode from N_PREFILL on; the last token is not what the other run was fed. */
static const int32_t own_way[N_PREFILL + N_DECODE] = {1, 300, 45, 1036, 261, 7, 512, 99};

/* At the last position the first eight elements are one and a half times as large. */
static void late_fault(const fd_op_args *args) {
    run_clean(args);
    int32_t row = N_PREFILL + N_DECODE - 1 - args->pos0;
    int64_t stride = fd_node_row_stride(args->node, args->n_kv);
    for (int i = 0; row >= 0 && row < args->n_pos && i < 8; i++) ((float *)args->out)[row * stride + i] *= 1.5f;
}

Test(choice, tokens_that_nobody_chose_diverge) {
    bench b = open_bench(models[0], (recording){0});
    for (int emulated = 0; emulated < 2; emulated++) {
        recording how = {.tokens = own_way, .emulated = emulated ? "bf16" : NULL};
        fd_verdict v = judged(&b, b.graph, how);
        cr_expect_eq(v.status, FD_DIVERGED);
        cr_expect_eq(v.divergence.kind, FD_DIVERGED_TOKENS);
        cr_expect_eq(v.divergence.pos, N_PREFILL + N_DECODE - 1);
        cr_expect(v.flip.fed && !v.flip.chosen);
        cr_expect_eq(v.replay.n_introduced, 0, "its own tokens explain what it computed");
        fd_verdict_free(&v);
    }
    close_model(&b);
}

/* The candidate is fed 99. Its logits: all 0, but 1 at 99 and at `tied`. */
Test(choice, the_highest_id_of_a_tie_is_said_to_be_no_best_token) {
    static const struct {
        int32_t tied, higher; /* -1: none */
        bool said;
    } ties[] = {{7, -1, true}, {-1, -1, false}, {7, 100, false}};
    enum { N = 101, LAST = N_PREFILL + N_DECODE - 1 };
    bench b = open_bench(models[0], (recording){.tensors = "logits"});
    fd_trace *cand = record(b.graph, (recording){.tensors = "logits", .tokens = own_way});
    for (size_t i = 0; i < sizeof ties / sizeof *ties; i++) {
        double of_ref[N] = {[3] = 1}, of_cand[N] = {[99] = 1}, tau[N] = {0};
        if (ties[i].tied >= 0) of_cand[ties[i].tied] = 1;
        if (ties[i].higher >= 0) of_cand[ties[i].higher] = 2;
        fd_flips flips;
        fd_error err = {0};
        fd_verdict v = {0};
        must(fd_flips_open(b.graph, LAST, &flips, &err), &err);
        flips.side = 1;
        add_row(&flips, &b.graph->nodes[flips.logits], LAST - 1, N, of_cand, tau, of_ref);
        fd_flips_report(&flips, b.ref, cand, &v);
        cr_expect(v.flip.fed);
        cr_expect_eq(v.notes.n, ties[i].said, "case %zu", i);
        if (v.notes.n)
            cr_expect(
                strstr(note_of(&v, 0), "the candidate went on with token 99, whose logit equals that of token 7"));
        fd_flips_close(&flips);
        fd_verdict_free(&v);
    }
    fd_trace_close(cand);
    close_model(&b);
}

Test(choice, after_the_tokens_part_each_side_is_judged_on_its_own) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty = spoiled(&b, "blk.4.ffn_up", late_fault);
    for (int emulated = 0; emulated < 2; emulated++) {
        recording how = {.tokens = own_way, .emulated = emulated ? "f16" : NULL};
        fd_verdict v = judged(&b, faulty, how);
        cr_expect_eq(v.status, FD_DIVERGED);
        cr_expect_str_eq(v.divergence.node, "blk.4.ffn_up");
        cr_expect_eq(v.divergence.pos, N_PREFILL + N_DECODE - 1);
        cr_expect(!v.divergence.has_values, "the reference has nothing there to set beside it");
        cr_expect_str_eq(v.replay.finding, "INTRODUCED");
        cr_expect(!v.replay.shares_known);
        cr_expect_eq(v.replay.n_beyond, 8);
        fd_verdict_free(&v);
    }
    close_model(&b);
}

/* Where explanations end: one position, two faults, tensors that were not recorded, noise, NaN. Where nothing tells two
 * causes apart, neither is claimed. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/explain_bench.h"
#include "tests/compare/said.h"

/* ---- less to look at, and more than one thing wrong ---- */

static bool first_kept(recorded_run *clean, recorded_run *run, const fd_graph *graph, fd_explanation *e) {
    fd_error err = {0};
    int32_t node = first_difference(clean, run);
    if (node < 0) return false;
    fd_explain_request question = ask_about(run, graph, prompt, node);
    must(fd_explain(&question, e, &err), &err);
    return true;
}

/* The last position alone, as a decode step shows it: rows of one position, caches from position 0. */
typedef struct last_row {
    recorded_run *run;
    const fd_graph *graph;
} last_row;

static const float *last_of(void *user, int32_t id) {
    const last_row *l = user;
    const fd_node *node = &l->graph->nodes[id];
    int64_t stride = fd_node_row_stride(node, N_PROMPT);
    return l->run->rows[id] + (node->op == FD_OP_KV_WRITE ? 0 : (N_PROMPT - 1) * stride);
}

static fd_explanation about_last(recorded_run *run, const fd_graph *graph, int32_t id) {
    last_row l = {run, graph};
    const fd_node *node = &graph->nodes[id];
    fd_explanation e;
    fd_error err = {0};
    fd_explain_request r = ask_about(run, graph, prompt, id);
    r.args.pos0 = N_PROMPT - 1;
    r.args.n_pos = 1;
    r.args.tokens = prompt + N_PROMPT - 1;
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0) r.args.in[k] = last_of(&l, node->input[k]);
    r.output = run->rows[id] + (N_PROMPT - 1) * fd_node_row_stride(node, N_PROMPT);
    r.tensor = last_of;
    r.user = &l;
    must(fd_explain(&r, &e, &err), &err);
    return e;
}

Test(explain, one_later_position_names_no_fault_wrongly) {
    bench b = open_model(models[1]);
    recorded_run clean = record_run(b.graph, prompt, N_PROMPT);
    score s = {0};
    for (int32_t i = 0; i < fd_fault_count(); i++) {
        char spec[96];
        snprintf(spec, sizeof spec, "%s%s", fd_fault_at(i)->name, fd_fault_at(i)->outside ? "" : "@1");
        const fd_graph *faulty = faulted(&b, spec);
        if (!faulty) continue;
        recorded_run run = record_run(faulty, prompt, N_PROMPT);
        int32_t at = first_difference(&clean, &run);
        if (at >= 0) { /* some change nothing in so short a prompt */
            fd_explanation e = about_last(&run, b.graph, at);
            count_answer(&e, fd_fault_at(i)->name, spec, models[1], &s);
        }
        recorded_run_free(&run);
        forget(&b);
    }
    print_score("one later position", &s);
    cr_expect_eq(s.n_wrong, 0);
    cr_expect(100 * s.n_named >= 80 * s.n_injected);
    recorded_run_free(&clean);
    close_model(&b);
}

/* One bug by two names: what two rows of the table make together is a third. */
static const struct {
    const char *pair[2], *together;
} unions[] = {{{"rope_q_one_further", "rope_k_one_further"}, "rope_both_one_further"},
              {{"rope_k_one_further", "rope_both_one_further"}, "rope_both_one_further"},
              {{"kv_stale_row", "kv_stale_v"}, "kv_stale_both"},
              {{"newest_key_stale", "newest_value_stale"}, "newest_both_stale"}};

static bool is_union(const fd_fault_info *const pair[2], const fd_explanation *e) {
    for (size_t i = 0; i < sizeof unions / sizeof *unions; i++)
        if (strcmp(pair[0]->name, unions[i].pair[0]) == 0 && strcmp(pair[1]->name, unions[i].pair[1]) == 0)
            return among_remaining(e, unions[i].together);
    return false;
}

Test(explain, of_two_faults_the_first_is_named_or_none) {
    bench b = open_model(models[1]);
    recorded_run clean = record_run(b.graph, prompt, N_PROMPT);
    int32_t n_pair = 0, n_named = 0, n = fd_fault_count();
    for (int32_t i = 0; i < n; i++)
        for (int32_t step = 1; step <= 21; step += 10) { /* the next of its family, and two of others */
            const fd_fault_info *pair[2] = {fd_fault_at(i), fd_fault_at((i + step) % n)};
            fd_explanation e;
            char specs[192];
            snprintf(specs, sizeof specs, "%s%s+%s%s", pair[0]->name, pair[0]->outside ? "" : "@2", pair[1]->name,
                     pair[1]->outside ? "" : "@2");
            const fd_graph *faulty = faulted(&b, specs);
            if (!faulty) continue;
            recorded_run run = record_run(faulty, prompt, N_PROMPT);
            if (first_kept(&clean, &run, b.graph, &e)) {
                n_pair++;
                n_named += e.named;
                cr_expect(!e.named || is_union(pair, &e) || among_remaining(&e, pair[0]->name) ||
                              among_remaining(&e, pair[1]->name),
                          "%s and %s are named %s", pair[0]->name, pair[1]->name, e.remaining[0].name);
            }
            recorded_run_free(&run);
            forget(&b);
        }
    fprintf(stderr, "pairs of faults: %d injected, the first named in %d\n", n_pair, n_named);
    cr_expect(n_pair > 100 && 2 * n_named > n_pair);
    recorded_run_free(&clean);
    close_model(&b);
}

/* ---- what cannot be told ---- */

typedef struct asked {
    bench b;
    recorded_run run;
    fd_explain_request request;
} asked;

/* Injects `spec` and prepares the question about `node` after n_pos positions. */
static asked ask(const char *model, const char *spec, const char *node, int32_t n_pos) {
    asked a = {.b = open_model(model)};
    a.run = record_run(spec ? faulted(&a.b, spec) : a.b.graph, prompt, n_pos);
    a.request = ask_about(&a.run, a.b.graph, prompt, fd_graph_find(a.b.graph, node));
    return a;
}

static fd_explanation answer(asked *a) {
    fd_explanation e;
    fd_error err = {0};
    a->request.user = &a->run; /* `a` may have moved since it was made */
    must(fd_explain(&a->request, &e, &err), &err);
    return e;
}

static void done(asked *a) {
    recorded_run_free(&a->run);
    close_model(&a->b);
}

Test(explain, a_clean_node_is_given_no_name) {
    asked a = ask("kjv-llama", NULL, "blk.2.attn_q_rope", N_PROMPT);
    fd_explanation e = answer(&a);
    cr_expect(!e.named && e.unmodified.z == 0.0 && strstr(unnamed_of(&e), "the op as it should be is within"), "%s",
              unnamed_of(&e));
    done(&a);
}

/* Three keep 11 bits of a factor, bfloat16 keeps 8; q8 rounds to int8. */
Test(explain, coarser_factors_are_no_bug_beside_a_class_that_rounds_as_much) {
    static const struct {
        const char *class_;
        int32_t n_left_out;
        bool named;
    } cases[] = {{"f32", 0, true}, {"tf32", 3, false}, {"f16", 3, false}, {"bf16", 4, false}, {"q8", 4, false}};
    asked a = ask("kjv-qwen2", "bf16_compute@1", "blk.1.attn_q", N_PROMPT);
    fd_explanation exact = answer(&a);
    cr_expect(exact.named && among_remaining(&exact, "bf16_compute"), "%s", unnamed_of(&exact));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        a.request.numerics = fd_numerics_class_find(cases[i].class_);
        a.request.n_output = 1e5;
        cr_assert(a.request.numerics != NULL);
        fd_explanation e = answer(&a);
        cr_expect_eq(exact.n_tried - e.n_tried, cases[i].n_left_out, "%s: %d tried, of %d", cases[i].class_, e.n_tried,
                     exact.n_tried);
        bool named = e.named && among_remaining(&e, "bf16_compute");
        cr_expect(named || !cases[i].named, "%s: %s", cases[i].class_, unnamed_of(&e));
        cr_expect(named || !e.named, "%s: a wrong name", cases[i].class_);
    }
    done(&a);
}

Test(explain, position_0_alone_cannot_tell_rotations_apart) {
    asked a = ask("kjv-llama", "rope_q_one_further@1", "blk.1.attn_q_rope", 1);
    a.request.tensor = NULL;
    fd_explanation e = answer(&a);
    cr_expect(e.n_without_effect >= 5, "%d rotations change nothing at position 0", e.n_without_effect);
    cr_expect(e.n_remaining >= 2 && among_remaining(&e, "rope_both_one_further"), "the two are the same at this node");
    done(&a);
    a = ask("kjv-llama", "rope_pairing@1", "blk.1.attn_q_rope", 1);
    e = answer(&a);
    cr_expect(!e.named && e.why && strstr(tells_apart_of(&e), "second position"), "%s; next %s", unnamed_of(&e),
              tells_apart_of(&e));
    done(&a);
}

Test(explain, equivalents_are_told_apart_by_nodes_beside_them_or_named_together) {
    asked a = ask("kjv-qwen2", "rope_q_one_further@1", "blk.1.attn_q_rope", N_PROMPT);
    fd_explanation e = answer(&a);
    cr_expect(e.named && e.n_remaining == 1 && strcmp(e.remaining[0].name, "rope_q_one_further") == 0);
    a.request.tensor = NULL;
    e = answer(&a);
    cr_expect(e.named && e.n_remaining == 2 && among_remaining(&e, "rope_both_one_further"));
    cr_expect(strstr(tells_apart_of(&e), "blk.1.attn_k_rope"), "next: %s", tells_apart_of(&e));
    done(&a);
}

Test(explain, what_was_not_recorded_is_said_to_be_untried) {
    asked a = ask("kjv-qwen2", "residual_wrong_branch@1", "blk.1.ffn_inp", N_PROMPT);
    fd_explanation e = answer(&a);
    cr_expect(e.named && e.n_untried == 0);
    a.request.tensor = NULL;
    e = answer(&a);
    cr_expect(!e.named && e.n_untried == 1 && strstr(tells_apart_of(&e), "other tensors of layer 1"), "%s; next %s",
              unnamed_of(&e), tells_apart_of(&e));
    done(&a);
}

/* ---- tolerance ---- */

static int64_t elements(const asked *a) {
    return a->run.n_pos * fd_node_row_stride(a->request.args.node, a->run.n_pos);
}

/* The candidate's rows with noise of up to one part in a million, and τ for it, `slack` times as wide. */
static fd_explanation with_noise(asked *a, double slack) {
    int64_t n = elements(a);
    float *noisy = malloc(sizeof *noisy * (size_t)n);
    double *tau = malloc(sizeof *tau * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        noisy[i] = a->request.output[i] * (1.0f + 1e-6f * (float)((i * 37 % 21) - 10) / 10.0f);
        tau[i] = slack * (1.2e-6 * fabs((double)noisy[i]) + 1e-12);
    }
    fd_explain_request exact = a->request;
    a->request.output = noisy;
    a->request.tau = tau;
    fd_explanation e = answer(a);
    a->request = exact;
    free(noisy);
    free(tau);
    return e;
}

Test(explain, noise_within_tau_does_not_hide_the_name_and_a_wide_tau_names_nothing) {
    static const struct {
        const char *spec, *node;
    } cases[] = {
        {"rope_base@2", "blk.2.attn_q_rope"},    {"attn_scale_by_width@1", "blk.1.attn_scores"},
        {"norm_plus_one@0", "blk.0.attn_norm"},  {"gelu_tanh@3", "blk.3.ffn_act"},
        {"residual_missing@2", "blk.2.ffn_inp"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        asked a = ask("kjv-qwen2", cases[i].spec, cases[i].node, N_PROMPT);
        fd_explanation e = with_noise(&a, 1.0);
        cr_expect(e.named && strncmp(e.remaining[0].name, cases[i].spec, strlen(e.remaining[0].name)) == 0, "%s: %s %s",
                  cases[i].spec, unnamed_of(&e), e.n_remaining ? e.remaining[0].name : "");
        cr_expect(e.remaining[0].z > 0.0 && e.remaining[0].z <= 1.0 && e.runner_up.z > 10.0);
        e = with_noise(&a, 1e9);
        cr_expect(!e.named && e.why, "%s is named though τ admits anything", cases[i].spec);
        done(&a);
    }
}

Test(explain, nan_in_tau_or_in_the_candidate_names_nothing) {
    asked a = ask("kjv-llama", "rope_sign@1", "blk.1.attn_q_rope", N_PROMPT);
    int64_t n = elements(&a);
    double *tau = malloc(sizeof *tau * (size_t)n);
    float *spoilt = malloc(sizeof *spoilt * (size_t)n);
    for (int64_t i = 0; i < n; i++) tau[i] = NAN;
    memcpy(spoilt, a.request.output, sizeof *spoilt * (size_t)n);
    cr_expect(answer(&a).named);
    spoilt[n - 1] = NAN;
    a.request.output = spoilt;
    cr_expect(!answer(&a).named, "one NaN that the explanation does not give");
    spoilt[n - 1] = nextafterf(a.run.rows[a.request.args.node->id][n - 1], INFINITY);
    a.request.tau = tau;
    cr_expect(!answer(&a).named, "a τ of NaN forgives nothing");
    free(tau);
    free(spoilt);
    done(&a);
}

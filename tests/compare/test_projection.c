/* Bugs below the bounds, of a class with room or through unrecorded ops: a slope of 1 on what the bug does, far from 0, is no
 * rounding. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/diagnose/below_bounds_internal.h"
#include "emulate/rounding.h"
#include "tests/compare/replay_bench.h"

enum { N_ROW = 16, N_ELEMENT = 64 };

/* Rows of d = ±1 with r = slope·d + noise of that size, with alternating signs that d does not have; and a common part that
 * whole rows share. */
typedef struct slope_case {
    const char *what;
    double slope, noise, of_rows;
    int32_t n_row;
    bool shown;
} slope_case;

static const slope_case cases[] = {
    {"the bug", 1, 0, 0, N_ROW, true},
    {"the bug under noise of twice its size", 1, 2, 0, N_ROW, true},
    {"noise", 0, 2, 0, N_ROW, false},
    {"half the bug", 0.5, 0, 0, N_ROW, false},
    {"its opposite", -1, 0, 0, N_ROW, false},
    {"the bug under noise that drowns it", 1, 8, 0, N_ROW, false},
    {"rows that go along with it by turns", 1, 0, 3, N_ROW, false},
    {"three rows", 1, 0, 0, 3, false},
    {"a tenth of it by turns, in sixteen rows", 1, 0, 0.1, N_ROW, true},
    {"a tenth of it by turns, in six rows", 1, 0, 0.1, 6, true},
    {"a tenth of it by turns, in four rows, which know their spread badly", 1, 0, 0.1, 4, false},
    {"a hundredth of it by turns, in four rows", 1, 0, 0.01, 4, true},
    {"NaN", NAN, 0, 0, N_ROW, false},
};

static fd_projection sums_of(const slope_case *c) {
    fd_projection all = {0};
    for (int32_t p = 0; p < c->n_row; p++) {
        fd_projection row = {.n_row = 1};
        for (int32_t i = 0; i < N_ELEMENT; i++) {
            double d = i % 2 ? 1 : -1, other = i / 2 % 2 ? c->noise : -c->noise;
            double r = c->slope * d + other + c->of_rows * (p % 2 ? d : -d);
            row.rd += r * d, row.dd += d * d;
            row.rr_d2 += r * r * d * d, row.r_d3 += r * d * d * d, row.d4 += d * d * d * d;
        }
        row.rd_rd = row.rd * row.rd, row.rd_dd = row.rd * row.dd, row.dd_dd = row.dd * row.dd;
        fd_projection_add(&all, &row);
    }
    return all;
}

Test(projection, a_slope_of_1_far_from_0_is_the_bug) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_projection all = sums_of(&cases[i]);
        fd_slope s = fd_projection_slope(&all);
        cr_expect_eq(s.shown, cases[i].shown, "%s: %g ± %g", cases[i].what, s.value, s.error);
    }
}

/* Rows that have the bug's values, and one that is NaN or Inf where the bug gives a number: no bug that gives numbers made that. */
Test(projection, a_row_that_is_not_finite_is_no_bug_s_whose_row_is) {
    static const float last[] = {0, NAN, INFINITY, -INFINITY};
    enum { N = 64 };
    for (size_t k = 0; k < sizeof last / sizeof *last; k++) {
        float plain[N], with_bug[N], output[N];
        double tau[N];
        fd_node node = {.op = FD_OP_ADD, .n_dim = 1, .shape = {1}};
        fd_explain_request request = {.args = {.node = &node, .n_pos = N}, .output = output};
        fd_trial_rows rows = {.request = &request, .plain = {.rows = plain, .tau = tau}};
        fd_variant bug = {.rows = with_bug};
        fd_projection all = {0};
        for (int32_t i = 0; i < N; i++) {
            plain[i] = (float)(i + 1), with_bug[i] = output[i] = 0, tau[i] = 1e-3;
            if (i == N - 1) output[i] = last[k];
            fd_projection_add_row(&rows, &bug, i, 0, &all);
        }
        fd_slope s = fd_projection_slope(&all);
        cr_expect_eq(s.shown, k == 0, "%g: %g ± %g", (double)last[k], s.value, s.error);
    }
}

Test(projection, in_one_node_alone_a_slope_is_nearer_to_1) {
    static const struct {
        double value, error;
        bool near;
    } slopes[] = {{1, 0.01, true},      {1.19, 0.15, true}, {1.19, 0.075, false},
                  {0.81, 0.075, false}, {NAN, 0.1, false},  {1, NAN, false}};
    for (size_t i = 0; i < sizeof slopes / sizeof *slopes; i++)
        cr_expect_eq(fd_slope_is_near(&(fd_slope){slopes[i].value, slopes[i].error, true}, FD_SLOPE_ASIDE),
                     slopes[i].near, "%g ± %g", slopes[i].value, slopes[i].error);
}

Test(projection, a_bug_within_the_bounds_is_found_and_named) {
    static const char *const classes[] = {"hf-bf16"};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        fd_error err = {0};
        fd_graph *faulty;
        fd_fault_owner *owner = NULL;
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        must(fd_fault_apply("eps_outside_root", faulty, &owner, &err), &err);
        fd_verdict v = judged(&b, faulty, (recording){.emulated = classes[i]});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_eq(v.status, FD_DIVERGED, "%s: %s", classes[i], fd_verdict_status_name(v.status));
        cr_expect_str_eq(v.divergence.node, "blk.0.attn_norm", "%s: %s", classes[i], v.divergence.node);
        cr_expect(e->named && strcmp(e->remaining[0].name, "eps_outside_root") == 0, "%s: %s", classes[i],
                  e->remaining[0].name);
        cr_expect(e->slope_rows > 0 && v.replay.z <= 1, "%s: found by the bounds, z %g", classes[i], v.replay.z);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
        fd_fault_owner_free(owner);
    }
    close_model(&b);
}

/* An engine of bfloat16 tensors, its norms' weights among them, which the file has in binary32. */
static void norm_of_held_weights(const fd_op_args *args, bool less_one) {
    const int64_t n = args->node->shape[0];
    const float *x = args->in[0], *w = args->weight[0]->data;
    for (int64_t p = 0; p < args->n_pos; p++) {
        double squares = 0;
        for (int64_t i = 0; i < n; i++) squares += (double)x[p * n + i] * (double)x[p * n + i];
        const double by = sqrt(squares / (double)(n - less_one) + (double)args->node->eps);
        for (int64_t i = 0; i < n; i++) {
            float held;
            fd_round_row(FD_EMULATE_BF16, &w[i], &held, 1);
            ((float *)args->out)[p * n + i] = (float)((double)x[p * n + i] / by * (double)held);
        }
    }
}
static void held(const fd_op_args *args) {
    norm_of_held_weights(args, false);
}
static void held_less_one(const fd_op_args *args) {
    norm_of_held_weights(args, true);
}

/* What the weights' rounding changes goes along with n − 1 for n, or against it, in every row by as much: a fifth of it, which is no part
 * of the bug. */
Test(projection, norm_weights_held_in_16_bits_hide_no_bug_of_one_norm) {
    for (int m = 0; m < 2 * N_MODEL; m++) {
        const bool bug = m % 2;
        bench b = open_bench(models[m / 2], (recording){.n_prompt = 8});
        fd_graph *graph = graph_copy(&b);
        for (int32_t i = 0; i < graph->n_node; i++)
            if (graph->nodes[i].op == FD_OP_RMS_NORM) graph->nodes[i].override = held;
        if (bug) graph->nodes[fd_graph_find(graph, "blk.3.ffn_norm")].override = held_less_one;
        fd_verdict v = judged(&b, graph, (recording){.emulated = "hf-bf16", .n_prompt = 8});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_eq(v.status, bug ? FD_DIVERGED : FD_NOISE, "%s: %s at %s", models[m / 2],
                     fd_verdict_status_name(v.status), v.divergence.node);
        if (bug) {
            cr_expect_str_eq(v.divergence.node, "blk.3.ffn_norm", "%s", v.divergence.node);
            cr_expect(e->named && strcmp(e->remaining[0].name, "norm_n_less_one") == 0, "%s", e->remaining[0].name);
        }
        fd_verdict_free(&v);
        fd_graph_free(graph);
        close_model(&b);
    }
}

/* eps 1e-6 for 1e-5, or outside the root, in one layer of an engine in binary32, where layer outputs alone were recorded, or the
 * logits. */
Test(projection, a_wrong_eps_in_binary32_is_found_through_layers) {
    static const struct {
        const char *fault, *name, *tensors, *node;
    } bugs[] = {{"eps_value@2", "eps_value", "token_embd,*.l_out,logits", "blk.2.l_out"},
                {"eps_outside_root@3", "eps_outside_root", "token_embd,*.l_out,logits", "blk.3.l_out"},
                {"eps_value@4", "eps_value", "logits", "logits"},
                {"eps_outside_root@5", "eps_outside_root", "logits", "logits"}};
    int n_by_slope = 0;
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        fd_error err = {0};
        fd_graph *faulty;
        fd_fault_owner *owner = NULL;
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        must(fd_fault_apply(bugs[i].fault, faulty, &owner, &err), &err);
        fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .tensors = bugs[i].tensors});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_eq(v.status, FD_DIVERGED, "%s: %s", bugs[i].fault, fd_verdict_status_name(v.status));
        cr_expect_str_eq(v.divergence.node, bugs[i].node, "%s: %s", bugs[i].fault, v.divergence.node);
        cr_expect(e->named && strcmp(e->remaining[0].name, bugs[i].name) == 0, "%s: %s", bugs[i].fault,
                  e->remaining[0].name);
        n_by_slope += e->slope_rows > 0;
        cr_expect(isfinite(v.divergence.diff.first.ref) && isfinite(v.divergence.diff.first.cand), "%s: %g against %g",
                  bugs[i].fault, v.divergence.diff.first.ref, v.divergence.diff.first.cand);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
        fd_fault_owner_free(owner);
        v = judged(&b, b.graph, (recording){.emulated = "f32", .tensors = bugs[i].tensors});
        cr_expect_eq(v.status, FD_NOISE, "sound, %s: %s at %s", bugs[i].tensors, fd_verdict_status_name(v.status),
                     v.divergence.node);
        fd_verdict_free(&v);
    }
    cr_expect(n_by_slope > 0, "all by the bounds");
    close_model(&b);
}

/* Of slope `slope` with squares of 1 in each of 16 rows. */
static fd_projection along(double slope) {
    return sums_of(&(slope_case){"", slope, 0.1 * fabs(slope), 0, N_ROW, false});
}

/* n - 1 for n changes all of a row by one factor, and so does a larger eps, nearly: what takes as much away is said as well, and first if
 * it takes more. */
Test(projection, another_eps_is_not_another_norm) {
    static const struct {
        double slope, no_eps;
        int32_t n;
        const char *first;
    } cases_of_eps[] = {{1, -1100, 2, "other_eps"},
                        {1, 0.5, 1, "norm_n_less_one"},
                        {1, -0.9, 1, "norm_n_less_one"},
                        {1, -0.97, 2, "norm_n_less_one"},
                        {1, NAN, 1, "norm_n_less_one"}};
    bench b = open_model(models[0]);
    const int32_t node = fd_graph_find(b.graph, "blk.1.ffn_norm");
    for (size_t i = 0; i < sizeof cases_of_eps / sizeof *cases_of_eps; i++) {
        fd_explanation e = {.named = true, .n_remaining = 1, .slope = 1};
        snprintf(e.remaining[0].name, sizeof e.remaining[0].name, "norm_n_less_one");
        const fd_projection named = along(cases_of_eps[i].slope), no_eps = along(cases_of_eps[i].no_eps);
        fd_below_or_eps(b.graph, node, &named, &no_eps, &e);
        cr_expect_eq(e.n_remaining, cases_of_eps[i].n, "%g: %d", cases_of_eps[i].no_eps, e.n_remaining);
        cr_expect_str_eq(e.remaining[0].name, cases_of_eps[i].first, "%g: %s", cases_of_eps[i].no_eps,
                         e.remaining[0].name);
    }
    close_model(&b);
}

/* cap·tanh(s / cap) of bfloat16 gives a small s back, each time: rounding that goes in the direction of no cap at all. So what such a
 * bug changes by less than a step of the type is left out. */
Test(projection, what_a_type_hardly_shows_is_left_out) {
    enum { N = 4 };
    const fd_node node = {.n_dim = 1, .shape = {N}};
    float sound[N] = {1, 2, 4, 8}, bug[N] = {1.001f, 2.1f, 4.001f, 8.4f}, candidate[N] = {1.001f, 2, 4.001f, 8};
    double tau[N] = {0.1, 0.1, 0.1, 0.1};
    const fd_explain_request request = {.args = {.node = &node, .n_pos = 1}, .output = candidate};
    const fd_trial_rows rows = {.request = &request, .plain = {.rows = sound, .tau = tau}};
    const fd_variant variant = {.rows = bug};
    fd_projection all = {0}, most = {0}, none = {0};
    fd_projection_add_row(&rows, &variant, 0, 0, &all);
    fd_projection_add_row(&rows, &variant, 0, 0.01, &most);
    fd_projection_add_row(&rows, &variant, 0, 0.1, &none);
    cr_expect_gt(all.rd, 0);
    cr_expect_eq(most.rd, 0, "%g", most.rd);
    cr_expect_float_eq(most.dd, 17, 1e-4, "%g", most.dd);
    cr_expect_eq(none.n_row, 0);
    const int32_t cap = fd_fault_find("attn_softcap_missing"), last = fd_fault_find("final_softcap_missing");
    cr_expect(fd_fault_at(cap)->hardly && fd_fault_at(last)->hardly);
}

/* ggml's kernels: layer outputs behind a binary16 cache may have as much left as a value leaves that fell to the other side. In no bug's
 * direction. */
Test(projection, a_bug_within_the_room_of_steps_is_found_by_its_direction) {
    static const int32_t tokens[N_PREFILL + N_DECODE] = {1, 30, 45, 103, 26, 7, 51, 88}; /* of a vocabulary of 128 */
    static const char *const faults[] = {NULL, "up_gelu_erf", "up_gelu_erf@1"};
    bench b = open_arch("gpt2-dense");
    b.ref = record(b.graph, (recording){.tokens = tokens});
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        recording how = {.emulated = "llama-cpu", .numerics = "ggml-cpu", .tensors = "token_embd*,*l_out,logits"};
        how.tokens = tokens;
        fd_verdict v = judged(&b, faults[i] ? faulted(&b, faults[i]) : b.graph, how);
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_eq(v.status, faults[i] ? FD_DIVERGED : FD_NOISE, "%zu: %s", i, fd_verdict_status_name(v.status));
        if (faults[i]) cr_expect(e->named && strncmp(e->remaining[0].name, faults[i], 11) == 0, "%zu", i);
        fd_verdict_free(&v);
        if (faults[i]) forget(&b);
    }
    close_model(&b);
}

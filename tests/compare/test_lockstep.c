#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "compare/diff/lockstep.h"
#include "tests/compare/fake_run.h"
#include "tests/compare/said.h"

enum { N_PROMPT = 5 };

typedef struct outcome {
    fd_code code;
    fd_error err;
    fd_verdict v;
} outcome;

static outcome lockstep(const fd_lockstep_side *ref, const fd_lockstep_side *cand, fd_lockstep_options o) {
    int32_t tokens[N_PROMPT];
    for (int32_t p = 0; p < N_PROMPT; p++) tokens[p] = fake_token(p);
    outcome out = {0};
    if (!o.tokens) {
        o.tokens = tokens;
        o.n_token = N_PROMPT;
    }
    o.ref = *ref;
    o.cand = *cand;
    out.code = fd_lockstep_run(&o, &out.v, &out.err);
    fd_exec_free(ref->exec);
    fd_exec_free(cand->exec);
    if (ref->trace) fd_trace_close((fd_trace *)ref->trace);
    if (cand->trace) fd_trace_close((fd_trace *)cand->trace);
    return out;
}

static outcome two_runs(const fake_options *ref, const fake_options *cand, int32_t n_generate) {
    fd_lockstep_side a = {.exec = fake_exec(ref), .label = "a", .fault = ""};
    fd_lockstep_side b = {.exec = fake_exec(cand), .label = "b", .fault = ""};
    return lockstep(&a, &b, (fd_lockstep_options){.n_generate = n_generate});
}

static const fake_options clean;

Test(lockstep, equal_runs_are_identical_in_every_tensor_of_every_step) {
    outcome o = two_runs(&clean, &clean, 4);
    cr_expect_eq(o.code, FD_OK, "%s", o.err.message);
    cr_expect_eq(o.v.status, FD_IDENTICAL, "%s", reason_of(&o.v, 0));
    cr_expect_eq(o.v.counts.n_compared, 4 * fake_graph()->n_node);
    cr_expect_eq(o.v.counts.n_step, 4);
    cr_expect_eq(o.v.counts.n_pos, N_PROMPT + 3, "the last token is chosen and not fed");
    cr_expect(o.v.counts.after_known);
    fd_verdict_free(&o.v);
}

Test(lockstep, one_ulp_is_found_at_its_node_in_every_node) {
    const fd_graph *graph = fake_graph();
    for (int32_t i = 0; i < graph->n_node; i++)
        for (int side = 0; side < 2; side++) {
            const fd_node *node = &graph->nodes[i];
            int32_t pos = i % 2 ? 3 : 6;
            fake_options faulty = {.edits = {{node->name, pos, 0, FAKE_ULP, 0}}};
            outcome o = side ? two_runs(&faulty, &clean, 4) : two_runs(&clean, &faulty, 4);
            cr_expect_eq(o.v.status, FD_DIVERGED, "%s", node->name);
            cr_expect_str_eq(o.v.divergence.node, node->name);
            cr_expect_eq(o.v.divergence.pos, pos, "%s", node->name);
            cr_expect_eq(o.v.divergence.step, pos < N_PROMPT ? 0 : pos - N_PROMPT + 1, "%s", node->name);
            cr_expect_eq(o.v.divergence.diff.first.ulp, 1, "%s", node->name);
            cr_expect_eq(o.v.divergence.inputs_equal, FD_EQUAL, "%s", node->name);
            cr_expect_eq(o.v.counts.n_before, o.v.divergence.step * graph->n_node + i, "%s", node->name);
            cr_expect(!o.v.counts.after_known, "the runs were stopped");
            fd_verdict_free(&o.v);
        }
}

Test(lockstep, nan_in_the_candidate_alone_is_a_divergence) {
    fake_options faulty = {.edits = {{"blk.0.attn_weights", 2, 4, FAKE_SET, NAN}}};
    outcome o = two_runs(&clean, &faulty, 1);
    cr_expect_eq(o.v.status, FD_DIVERGED);
    cr_expect_eq(o.v.divergence.diff.n_nan_new, 1);
    fd_verdict_free(&o.v);
    o = two_runs(&faulty, &faulty, 1);
    cr_expect_eq(o.v.status, FD_IDENTICAL, "the same NaN on both sides");
    fd_verdict_free(&o.v);
}

Test(lockstep, a_failing_side_ends_both_and_is_named, .timeout = 20) {
    static const char *const nodes[] = {"token_embd", "blk.1.attn_scores", "logits"};
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < 3; i++)
            for (int step = 0; step < 2; step++) {
                fake_options failing = {.fail_node = nodes[i], .fail_step = step};
                outcome o = side ? two_runs(&clean, &failing, 3) : two_runs(&failing, &clean, 3);
                cr_expect_eq(o.code, FD_ERR_DEVICE, "%s", nodes[i]);
                cr_expect_eq(strncmp(o.err.message, side ? "b: " : "a: ", 3), 0, "%s", o.err.message);
                fd_verdict_free(&o.v);
            }
}

Test(lockstep, two_failing_sides_end, .timeout = 20) {
    fake_options a = {.fail_node = "blk.0.attn_q"}, b = {.fail_node = "blk.0.attn_k"};
    outcome o = two_runs(&a, &b, 3);
    cr_expect_eq(o.code, FD_ERR_DEVICE);
    fd_verdict_free(&o.v);
}

Test(lockstep, a_node_that_one_side_lacks_is_incomplete, .timeout = 20) {
    static const char *const nodes[] = {"token_embd", "blk.0.cache_k", "logits"};
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < 3; i++) {
            fake_options lacking = {.skip_node = nodes[i]};
            outcome o = side ? two_runs(&clean, &lacking, 2) : two_runs(&lacking, &clean, 2);
            cr_expect_eq(o.code, FD_OK, "%s", o.err.message);
            cr_expect_eq(o.v.status, FD_INCOMPLETE, "%s", nodes[i]);
            cr_assert_eq(o.v.n_missing, 1);
            cr_expect_str_eq(o.v.missing[0].name, nodes[i]);
            cr_expect_eq(o.v.missing[0].why, side ? FD_ONLY_IN_REFERENCE : FD_ONLY_IN_CANDIDATE);
            cr_expect_eq(o.v.missing[0].n_pos, N_PROMPT + 1);
            cr_expect_eq(o.v.counts.n_compared, 2 * (fake_graph()->n_node - 1));
            fd_verdict_free(&o.v);
        }
}

Test(lockstep, different_nodes_missing_on_the_two_sides_are_both_listed, .timeout = 20) {
    fake_options a = {.skip_node = "blk.0.attn_q"}, b = {.skip_node = "blk.0.attn_v"};
    outcome o = two_runs(&a, &b, 1);
    cr_expect_eq(o.v.status, FD_INCOMPLETE);
    cr_expect_eq(o.v.n_missing, 2);
    fd_verdict_free(&o.v);
}

Test(lockstep, a_node_that_neither_side_shows_is_noticed, .timeout = 20) {
    fake_options lacking = {.skip_node = "blk.1.ffn_up"};
    outcome o = two_runs(&lacking, &lacking, 2);
    cr_expect_eq(o.v.status, FD_INCOMPLETE);
    fd_verdict_free(&o.v);
}

Test(lockstep, an_input_nobody_compared_is_unknown) {
    fake_options a = {.skip_node = "blk.0.attn_q"}, b = {.edits = {{"blk.0.attn_q_rope", 0, 0, FAKE_ULP, 0}}};
    outcome o = two_runs(&a, &b, 1);
    cr_expect_str_eq(o.v.divergence.node, "blk.0.attn_q_rope");
    cr_expect_eq(o.v.divergence.inputs_equal, FD_EQUALITY_UNKNOWN);
    fd_verdict_free(&o.v);
}

static fd_code always_seven(void *user, const float *logits, int32_t n_vocab, const int32_t *history, int32_t n_history,
                            int32_t *token, fd_error *err) {
    int32_t *calls = user;
    (void)logits, (void)err;
    cr_expect_eq(n_vocab, 32);
    cr_expect_eq(n_history, N_PROMPT + *calls);
    if (*calls) cr_expect_eq(history[n_history - 1], 7);
    ++*calls;
    *token = 7;
    return FD_OK;
}

Test(lockstep, both_sides_are_fed_what_the_caller_chooses) {
    int32_t calls = 0;
    fd_lockstep_side a = {.exec = fake_exec(&clean), .label = "a"}, b = {.exec = fake_exec(&clean), .label = "b"};
    outcome o = lockstep(&a, &b, (fd_lockstep_options){.n_generate = 4, .choose = always_seven, .choose_user = &calls});
    cr_expect_eq(calls, 3);
    cr_expect_eq(o.v.status, FD_IDENTICAL);
    fd_verdict_free(&o.v);
}

Test(lockstep, greedy_takes_the_lowest_of_equals_and_refuses_nan) {
    float logits[] = {0, 3, 1, 3};
    int32_t token = -1;
    fd_error err = {0};
    cr_expect_eq(fd_choose_greedy(NULL, logits, 4, NULL, 1, &token, &err), FD_OK);
    cr_expect_eq(token, 1);
    logits[2] = NAN;
    cr_expect_eq(fd_choose_greedy(NULL, logits, 4, NULL, 1, &token, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "id 2"), "%s", err.message);
}

/* ---- beside a trace ---- */

static outcome beside(const fake_trace_options *recorded, const fake_options *run, bool trace_is_ref) {
    fd_trace *trace = fake_trace(recorded);
    fd_lockstep_side live = {.exec = fake_exec(run), .label = "live"}, kept = {.trace = trace, .label = "kept"};
    fd_lockstep_options o = {.tokens = fd_trace_tokens(trace),
                             .n_token = fd_trace_n_pos(trace),
                             .steps = fd_trace_steps(trace),
                             .n_step = fd_trace_n_step(trace)};
    return trace_is_ref ? lockstep(&kept, &live, o) : lockstep(&live, &kept, o);
}

static const fd_trace_level levels[] = {FD_TRACE_FULL, FD_TRACE_STATS, FD_TRACE_FINGERPRINT};

Test(lockstep, a_trace_stands_in_for_either_side_at_every_level) {
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < 3; i++) {
            fake_trace_options recorded = {.level = levels[i]};
            outcome o = beside(&recorded, &clean, side);
            cr_expect_eq(o.code, FD_OK, "%s", o.err.message);
            cr_expect_eq(o.v.status, FD_IDENTICAL, "%s", reason_of(&o.v, 0));
            cr_expect_eq(o.v.counts.n_compared, 4 * fake_graph()->n_node);
            fd_verdict_free(&o.v);

            fake_options faulty = {.edits = {{"blk.1.attn_scores", 6, 9, FAKE_ULP, 0}}};
            o = beside(&recorded, &faulty, side);
            cr_expect_eq(o.v.status, FD_DIVERGED);
            cr_expect_str_eq(o.v.divergence.node, "blk.1.attn_scores");
            cr_expect_eq(o.v.divergence.pos, 6);
            cr_expect_eq(o.v.divergence.has_values, levels[i] == FD_TRACE_FULL);
            if (levels[i] == FD_TRACE_FULL) cr_expect_eq(o.v.divergence.diff.first.index, 9);
            cr_expect_eq(o.v.divergence.inputs_equal, FD_EQUAL);
            fd_verdict_free(&o.v);
        }
}

Test(lockstep, a_trace_with_holes_is_incomplete) {
    static const fake_trace_options holes[] = {{.level = FD_TRACE_FULL, .tensors = "*[!p]"},
                                               {.level = FD_TRACE_FULL, .abandon_after = 2},
                                               {.level = FD_TRACE_FINGERPRINT, .contract = FD_CONTRACT_VERSION + 1}};
    for (size_t i = 0; i < sizeof holes / sizeof *holes; i++) {
        outcome o = beside(&holes[i], &clean, false);
        cr_expect_eq(o.code, FD_OK, "%s", o.err.message);
        cr_expect_eq(o.v.status, FD_INCOMPLETE, "case %zu", i);
        fd_verdict_free(&o.v);
    }
}

Test(lockstep, other_numerics_in_a_trace_are_compared_by_element) {
    fake_trace_options recorded = {.level = FD_TRACE_FULL, .run.f64 = true};
    outcome o = beside(&recorded, &clean, true);
    cr_expect_eq(o.v.status, FD_IDENTICAL, "%s at %s", reason_of(&o.v, 0), o.v.divergence.node);
    cr_expect_eq(o.v.counts.n_by_fingerprint, 0);
    fd_verdict_free(&o.v);
}

Test(lockstep, other_tokens_than_the_traces_are_the_divergence) {
    fake_trace_options recorded = {.level = FD_TRACE_FULL};
    int32_t tokens[3] = {fake_token(0), fake_token(1), 31};
    fd_trace *trace = fake_trace(&recorded);
    fd_lockstep_side live = {.exec = fake_exec(&clean), .label = "live"}, kept = {.trace = trace, .label = "kept"};
    outcome o = lockstep(&kept, &live, (fd_lockstep_options){.tokens = tokens, .n_token = 3});
    cr_expect_eq(o.v.status, FD_DIVERGED);
    cr_expect_eq(o.v.divergence.kind, FD_DIVERGED_TOKENS);
    cr_expect_eq(o.v.divergence.pos, 2);
    cr_expect_eq(o.v.divergence.cand_token, 31);
    cr_expect_eq(o.v.divergence.ref_token, fake_token(2));
    fd_verdict_free(&o.v);
}

Test(lockstep, an_executor_that_fails_beside_a_trace_is_an_error) {
    fake_trace_options recorded = {.level = FD_TRACE_FULL};
    fake_options failing = {.fail_node = "blk.0.ffn_act", .fail_step = 1};
    outcome o = beside(&recorded, &failing, true);
    cr_expect_eq(o.code, FD_ERR_DEVICE);
    fd_verdict_free(&o.v);
}

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compare/diff/golden.h"
#include "tests/compare/golden_bench.h"
#include "tests/scratch.h"

static fd_golden_result check(const fd_trace *golden, const fake_options *run, fd_code expected) {
    fd_golden_result result;
    fd_error err = {0};
    fd_exec *exec = fake_exec(run);
    cr_expect_eq(fd_golden_check(exec, golden, &result, &err), expected, "%s", err.message);
    fd_exec_free(exec);
    return result;
}

Test(golden_run, a_clean_run_passes) {
    fd_trace *g = golden_of_clean();
    cr_expect_eq(fd_trace_n_pos(g), N_POS);
    cr_expect_eq(fd_trace_n_step(g), N_GENERATE);
    fd_golden_result r = check(g, &clean_run, FD_OK);
    cr_expect_eq(r.kind, FD_GOLDEN_SAME);
    cr_expect_eq(r.n_same, N_GENERATE * fake_graph()->n_node);
    fd_trace_close(g);
}

Test(golden_run, one_ulp_fails_at_its_node_in_every_node) {
    const fd_graph *graph = fake_graph();
    fd_trace *g = golden_of_clean();
    for (int32_t i = 0; i < graph->n_node; i++) {
        int32_t pos = i % 2 ? 2 : 5;
        fake_options faulty = {.edits = {{graph->nodes[i].name, pos, 0, FAKE_ULP, 0}}};
        fd_golden_result r = check(g, &faulty, FD_OK);
        cr_expect_eq(r.kind, FD_GOLDEN_TENSOR, "%s", graph->nodes[i].name);
        cr_expect_str_eq(r.node, graph->nodes[i].name);
        cr_expect_eq(r.pos, pos, "%s", graph->nodes[i].name);
        cr_expect_eq(r.step, pos < N_PROMPT ? 0 : 2, "%s", graph->nodes[i].name);
        cr_expect_eq(r.n_same, r.step * graph->n_node + i, "%s", graph->nodes[i].name);
        cr_expect_eq(r.logits_differ, i == graph->n_node - 1, "%s", graph->nodes[i].name);
    }
    fd_trace_close(g);
}

Test(golden_run, logits_that_differ_are_shown) {
    fd_trace *g = golden_of_clean();
    fake_options faulty = {.edits = {{"logits", N_PROMPT - 1, 9, FAKE_SET, 50}, {"blk.0.attn_q", 3, 0, FAKE_ULP, 0}}};
    fd_golden_result r = check(g, &faulty, FD_OK);
    cr_expect_str_eq(r.node, "blk.0.attn_q", "the first tensor is named");
    cr_expect(r.logits_differ);
    cr_expect_eq(r.logit_pos, N_PROMPT - 1);
    cr_expect_eq(r.logit_id, 9);
    cr_expect_eq(r.logit_now, 50.0f);
    cr_expect_eq(r.n_logit_differ, 1);
    cr_expect(r.choice_differs);
    cr_expect_eq(r.choice_now, 9);
    fd_trace_close(g);
}

Test(golden_run, a_nan_is_a_difference) {
    fd_trace *g = golden_of_clean();
    fake_options faulty = {.edits = {{"logits", -1, 9, FAKE_SET, NAN}}};
    fd_golden_result r = check(g, &faulty, FD_OK);
    cr_expect_eq(r.kind, FD_GOLDEN_TENSOR);
    cr_expect(isnan(r.logit_now));
    fd_trace_close(g);
}

Test(golden_run, recorded_logits_and_tokens_are_held_against_the_run) {
    fd_trace *g = golden_of(clean_info(), other_logit);
    fd_golden_result r = check(g, &clean_run, FD_OK);
    cr_expect_eq(r.kind, FD_GOLDEN_LOGITS);
    cr_expect(r.logit_golden == 7 && r.logit_pos == 1);
    fd_trace_close(g);

    g = golden_of(clean_info(), other_token);
    r = check(g, &clean_run, FD_OK);
    cr_expect_eq(r.kind, FD_GOLDEN_CHOICE, "the token was not the greedy one");
    cr_expect_eq(r.pos, N_PROMPT + 1);
    fd_trace_close(g);
}

Test(golden_run, a_tensor_that_is_not_shown_is_no_pass) {
    fd_trace *g = golden_of_clean();
    fake_options lacking = {.skip_node = "blk.0.ffn_up"};
    check(g, &lacking, FD_ERR_INCOMPLETE);
    fd_trace_close(g);
}

Test(golden_run, nothing_is_recorded_of_a_run_with_nan_or_holes) {
    static const fake_options bad[] = {{.edits = {{"logits", 3, 0, FAKE_SET, NAN}}}, {.skip_node = "blk.0.ffn_up"}};
    static const fd_code codes[] = {FD_ERR_INPUT, FD_ERR_INCOMPLETE};
    for (int i = 0; i < 2; i++) {
        char path[SCRATCH_PATH];
        fd_error err = {0};
        close(mkstemp(scratch_path(path, "firstdiff-golden-XXXXXX")));
        cr_expect_eq(record_fake(path, &bad[i], clean_info(), &err), codes[i], "%s", err.message);
        unlink(path);
    }
}

Test(golden_run, goldens_of_something_else_are_refused) {
    enum { RENAMED = 4 };
    fd_graph as_it_is = *fake_graph(), renamed = as_it_is, shorter = as_it_is, other_vocab = as_it_is;
    fd_node *nodes = malloc(sizeof *nodes * (size_t)as_it_is.n_node);
    memcpy(nodes, as_it_is.nodes, sizeof *nodes * (size_t)as_it_is.n_node);
    strcpy(nodes[RENAMED].name, "blk.0.other");
    renamed.nodes = nodes;
    shorter.n_node--;
    other_vocab.hparams.n_vocab++;
    const struct {
        fd_trace_info info;
        const fd_graph *graph;
        const char *hash, *message;
        fd_code code;
    } cases[] = {
        {clean_info(), &as_it_is, "xxh3-128:a", "", FD_OK},
        {clean_info(), &as_it_is, "xxh3-128:b", "another model", FD_ERR_INPUT},
        {{.numerics = "exact", .contract = FD_CONTRACT_VERSION + 1, .model_hash = "xxh3-128:a"},
         &as_it_is,
         "xxh3-128:a",
         "contract",
         FD_ERR_INCOMPLETE},
        {{.numerics = "fast", .model_hash = "xxh3-128:a"}, &as_it_is, "xxh3-128:a", "numerics", FD_ERR_INCOMPLETE},
        {clean_info(), &renamed, "xxh3-128:a", "blk.0.other", FD_ERR_INCOMPLETE},
        {clean_info(), &shorter, "xxh3-128:a", "nodes", FD_ERR_INCOMPLETE},
        {clean_info(), &other_vocab, "xxh3-128:a", "vocabulary", FD_ERR_INPUT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_trace *g = golden_of(cases[i].info, NULL);
        fd_error err = {0};
        cr_expect_eq(fd_golden_usable(g, cases[i].graph, cases[i].hash, &err), cases[i].code, "case %zu", i);
        cr_expect(strstr(err.message, cases[i].message), "case %zu: %s", i, err.message);
        fd_trace_close(g);
    }
    free(nodes);
}

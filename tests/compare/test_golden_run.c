#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/diff/golden_near.h"
#include "compare/diff/golden_run.h"
#include "tests/compare/fake_run.h"

enum { N_PROMPT = 4, N_GENERATE = 3 };

static const fake_options clean;

/* A golden of one prompt of a clean run. */
static fd_golden *golden_of_clean(void) {
    int32_t ids[N_PROMPT];
    fd_error err = {0};
    const fd_graph *graph = fake_graph();
    for (int32_t p = 0; p < N_PROMPT; p++) ids[p] = fake_token(p);
    fd_golden *g = calloc(1, sizeof *g);
    strcpy(g->numerics, "exact");
    strcpy(g->model_hash, "xxh3-128:a");
    g->contract = FD_CONTRACT_VERSION;
    g->n_vocab = graph->hparams.n_vocab;
    g->n_node = graph->n_node;
    g->n_generate = N_GENERATE;
    g->nodes = calloc((size_t)graph->n_node, sizeof *g->nodes);
    for (int32_t i = 0; i < graph->n_node; i++) strcpy(g->nodes[i], graph->nodes[i].name);
    g->prompts = calloc(1, sizeof *g->prompts);
    g->n_prompt = 1;
    fd_exec *exec = fake_exec(&clean);
    cr_assert_eq(fd_golden_record(exec, ids, N_PROMPT, N_GENERATE, &g->prompts[0], &err), FD_OK, "%s", err.message);
    fd_exec_free(exec);
    return g;
}

static fd_golden_result check(const fd_golden *golden, const fake_options *run, fd_code expected) {
    fd_golden_result result;
    fd_error err = {0};
    fd_exec *exec = fake_exec(run);
    cr_expect_eq(fd_golden_check(exec, golden, 0, &result, &err), expected, "%s", err.message);
    fd_exec_free(exec);
    return result;
}

Test(golden_run, a_clean_run_passes) {
    fd_golden *g = golden_of_clean();
    cr_expect_eq(g->prompts[0].n_pos, N_PROMPT + N_GENERATE - 1);
    cr_expect_eq(g->prompts[0].n_token, N_PROMPT + N_GENERATE);
    fd_golden_result r = check(g, &clean, FD_OK);
    cr_expect_eq(r.kind, FD_GOLDEN_SAME);
    cr_expect_eq(r.n_same, N_GENERATE * fake_graph()->n_node);
    fd_golden_free(g);
}

Test(golden_run, one_ulp_fails_at_its_node_in_every_node) {
    const fd_graph *graph = fake_graph();
    fd_golden *g = golden_of_clean();
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
    fd_golden_free(g);
}

Test(golden_run, logits_that_differ_are_shown) {
    fd_golden *g = golden_of_clean();
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
    fd_golden_free(g);
}

Test(golden_run, a_nan_is_a_difference) {
    fd_golden *g = golden_of_clean();
    fake_options faulty = {.edits = {{"logits", -1, 9, FAKE_SET, NAN}}};
    fd_golden_result r = check(g, &faulty, FD_OK);
    cr_expect_eq(r.kind, FD_GOLDEN_TENSOR);
    cr_expect(isnan(r.logit_now));
    fd_golden_free(g);
}

Test(golden_run, recorded_logits_and_tokens_are_held_against_the_run) {
    fd_golden *g = golden_of_clean();
    g->prompts[0].logits[3] += 1.0f;
    cr_expect_eq(check(g, &clean, FD_OK).kind, FD_GOLDEN_LOGITS);
    g->prompts[0].logits[3] -= 1.0f;
    fd_golden_free(g);

    g = golden_of_clean();
    g->prompts[0].tokens[N_PROMPT + 2] ^= 1;
    fd_golden_result r = check(g, &clean, FD_OK);
    cr_expect_eq(r.kind, FD_GOLDEN_CHOICE, "the last token is chosen, not fed");
    cr_expect_eq(r.pos, N_PROMPT + 2);
    fd_golden_free(g);
}

Test(golden_run, a_tensor_that_is_not_shown_is_no_pass) {
    fd_golden *g = golden_of_clean();
    fake_options lacking = {.skip_node = "blk.0.ffn_up"};
    check(g, &lacking, FD_ERR_INCOMPLETE);
    fd_golden_free(g);
}

Test(golden_run, nothing_is_recorded_of_a_run_with_nan_or_holes) {
    static const fake_options bad[] = {{.edits = {{"logits", 3, 0, FAKE_SET, NAN}}}, {.skip_node = "blk.0.ffn_up"}};
    static const fd_code codes[] = {FD_ERR_INPUT, FD_ERR_INCOMPLETE};
    int32_t ids[N_PROMPT] = {1, 2, 3, 4};
    for (int i = 0; i < 2; i++) {
        fd_error err = {0};
        fd_golden_prompt prompt;
        fd_exec *exec = fake_exec(&bad[i]);
        cr_expect_eq(fd_golden_record(exec, ids, N_PROMPT, 1, &prompt, &err), codes[i]);
        cr_expect_null(prompt.logits);
        fd_exec_free(exec);
    }
}

static void other_hash(fd_golden *g) {
    strcpy(g->model_hash, "xxh3-128:b");
}
static void other_contract(fd_golden *g) {
    g->contract++;
}
static void other_numerics(fd_golden *g) {
    strcpy(g->numerics, "fast");
}
static void other_node(fd_golden *g) {
    strcpy(g->nodes[4], "blk.0.other");
}
static void fewer_nodes(fd_golden *g) {
    g->n_node--;
}
static void other_vocab(fd_golden *g) {
    g->n_vocab++;
}
static void as_it_is(fd_golden *g) {
    (void)g;
}

Test(golden_run, goldens_of_something_else_are_refused) {
    static const struct {
        void (*change)(fd_golden *g);
        fd_code code;
        const char *message;
    } cases[] = {{as_it_is, FD_OK, ""},
                 {other_hash, FD_ERR_INPUT, "another model"},
                 {other_contract, FD_ERR_INCOMPLETE, "contract"},
                 {other_numerics, FD_ERR_INCOMPLETE, "numerics"},
                 {other_node, FD_ERR_INCOMPLETE, "blk.0.other"},
                 {fewer_nodes, FD_ERR_INCOMPLETE, "nodes"},
                 {other_vocab, FD_ERR_INPUT, "vocabulary"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_golden *g = golden_of_clean();
        fd_error err = {0};
        cases[i].change(g);
        cr_expect_eq(fd_golden_usable(g, fake_graph(), "xxh3-128:a", &err), cases[i].code, "case %zu", i);
        cr_expect(strstr(err.message, cases[i].message), "case %zu: %s", i, err.message);
        fd_golden_free(g);
    }
}

static fd_golden_near near(const fd_golden *golden, const fake_options *run, double limit) {
    fd_golden_near result;
    fd_error err = {0};
    fd_exec *exec = fake_exec(run);
    cr_expect_eq(fd_golden_check_near(exec, golden, 0, limit, &result, &err), FD_OK, "%s", err.message);
    fd_exec_free(exec);
    return result;
}

Test(golden_near, int8_activations_have_a_wider_limit) {
    static const char *const narrow[] = {"exact", "fast", "emulate-f16", "unheard-of"};
    static const char *const wide[] = {"q8act", "fast-int8", "emulate-llama-cpu:3"};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        cr_expect_eq(fd_golden_near_limit(narrow[i]), FD_GOLDEN_NEAR_LIMIT, "%s", narrow[i]);
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        cr_expect_eq(fd_golden_near_limit(wide[i]), FD_GOLDEN_NEAR_LIMIT_INT8, "%s", wide[i]);
}

Test(golden_near, only_logits_beyond_the_limit_fail_and_nan_does) {
    fd_golden *g = golden_of_clean();
    fd_golden_near r = near(g, &clean, 0);
    cr_expect(r.near && r.worst == 0 && r.n_flip == 0);
    fake_options ulp = {.edits = {{"logits", 2, 3, FAKE_ULP, 0}}};
    r = near(g, &ulp, FD_GOLDEN_NEAR_LIMIT);
    cr_expect(r.near && r.worst > 0 && r.pos == 2, "an ulp is near: %g at %d", r.worst, r.pos);
    fake_options far = {.edits = {{"logits", N_PROMPT, 9, FAKE_SET, 50}}};
    r = near(g, &far, FD_GOLDEN_NEAR_LIMIT);
    cr_expect(!r.near && r.worst > FD_GOLDEN_NEAR_LIMIT && r.pos == N_PROMPT, "%g at %d", r.worst, r.pos);
    cr_expect_eq(r.n_flip, 1, "the greedy token follows the logit");
    fake_options nan = {.edits = {{"logits", 1, 0, FAKE_SET, NAN}}};
    r = near(g, &nan, INFINITY);
    cr_expect(!r.near && r.pos == 1, "NaN is near nothing");
    fd_golden_free(g);
}

/* What overflowed: the cause of the first NaN or Inf, as a table of engines that compute one op in a narrower type. Each
 * case makes some rows so large that they overflow there and leaves the others finite. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/diagnose/overflow.h"
#include "compare/report/report.h"
#include "tests/compare/overflow_ops.h"
#include "tests/compare/replay_bench.h"

typedef struct overflow_case {
    const char *large;        /* node of layer 1 whose rows are made larger; NULL: none */
    fd_override_fn how_large; /* … by this much */
    const char *node;         /* of layer 1 that the engine computes */
    fd_override_fn engine;    /* … like this */
    fd_overflow_kind kind;
    const char *input, *type, *says;
} overflow_case;

static const overflow_case cases[] = {
    {"ffn_act", by_a_million, "ffn_down", of_half, FD_OVERFLOW_INPUT, "blk.1.ffn_act", "binary16",
     "binary16 ends at 65504 (so in 2 of 5 rows, and only these)"},
    {"attn_norm", by_25800, "attn_q", to_half, FD_OVERFLOW_RESULT, "", "binary16", "its result reaches"},
    {"ffn_norm", there_and_back, "ffn_gate", summed_in_half, FD_OVERFLOW_PARTIAL_SUM, "blk.1.ffn_norm", "binary16",
     "a partial sum over blk.1.ffn_norm reaches"},
    {"attn_q_rope", by_8000, "attn_scores", to_half, FD_OVERFLOW_UNSCALED, "", "binary16", "before it is scaled"},
    {"attn_scores", by_150, "attn_weights", softmax_without_max, FD_OVERFLOW_EXPONENTIAL, "blk.1.attn_scores",
     "binary32", "exp of an element of blk.1.attn_scores reaches"},
    {"ffn_inp", by_8000, "ffn_norm", squares, FD_OVERFLOW_SQUARE, "blk.1.ffn_inp", "binary16", "the square of"},
    {"ffn_inp", by_150, "ffn_norm", sums_of_squares, FD_OVERFLOW_SQUARES, "blk.1.ffn_inp", "binary16",
     "the sum of the squares"},
    {"ffn_inp", by_nothing, "ffn_norm", without_eps, FD_OVERFLOW_NORM_OF_ZERO, "blk.1.ffn_inp", "binary32", "1/0"},
    {NULL, NULL, "attn_scores", row_two_is_masked, FD_OVERFLOW_MASKED, "", NULL, "hides 24 of 24 scores"},
    {NULL, NULL, "attn_weights", row_two_is_nan, FD_OVERFLOW_NO_KEY, "", NULL, "keys are all masked"},
    /* large where it did no harm, or nothing large at all: no cause is made up */
    {"ffn_act", by_a_million, "ffn_down", row_two_is_nan, FD_OVERFLOW_UNKNOWN, "", NULL, "cause unknown"},
    {NULL, NULL, "attn_q", row_two_is_nan, FD_OVERFLOW_UNKNOWN, "", NULL, "memory that nobody wrote"},
    {"ffn_act", by_150, "ffn_down", of_half, FD_OVERFLOW_NONE, "", NULL, NULL},
};

/* Every tensor was recorded but those between `first` and the node. */
typedef struct partial {
    const recorded_run *run;
    int32_t first, last;
} partial;

static const float *recorded_outside(void *user, int32_t node) {
    const partial *p = user;
    return node >= p->first && node < p->last ? NULL : p->run->rows[node];
}

static void expect(const overflow_case *c, const fd_overflow *o, const char *node) {
    char text[FD_OVERFLOW_TEXT_SIZE];
    fd_overflow_text(o, text);
    cr_expect_eq(o->kind, c->kind, "%s: %s, expected %s: %s", c->node, fd_overflow_kind_name(o->kind),
                 fd_overflow_kind_name(c->kind), text);
    if (o->kind != c->kind || c->kind == FD_OVERFLOW_NONE) return;
    cr_expect_str_eq(o->node, node);
    cr_expect_str_eq(o->input, c->input, "%s: %s", c->node, text);
    cr_expect_str_eq(o->type ? o->type : "", c->type ? c->type : "", "%s: %s", c->node, text);
    cr_expect(o->pos == 2 && strstr(text, c->says), "%s: %s", c->node, text);
    cr_expect(!o->type || c->kind == FD_OVERFLOW_NORM_OF_ZERO || o->reaches > o->limit, "%s", text);
}

static fd_graph *engine(bench *b, const overflow_case *c, char node[64]) {
    char large[64];
    fd_graph *graph = spoiled(b, "blk.1.attn_norm", run_clean);
    snprintf(node, 64, "blk.1.%s", c->node);
    snprintf(large, sizeof large, "blk.1.%s", c->large ? c->large : "attn_norm");
    if (c->large) graph->nodes[fd_graph_find(graph, large)].override = c->how_large;
    graph->nodes[fd_graph_find(graph, node)].override = c->engine;
    return graph;
}

Test(overflow, the_cause_is_what_foretells_which_rows_are_finite) {
    bench b = open_model(models[0]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char node[64];
        fd_error err = {0};
        fd_overflow o;
        recorded_run run = record_run(engine(&b, &cases[i], node), prompt, N_PROMPT);
        fd_explain_request r = ask_about(&run, b.graph, prompt, fd_graph_find(b.graph, node));
        must(fd_overflow_of(&r, 2, &o, &err), &err);
        expect(&cases[i], &o, node);
        recorded_run_free(&run);
        forget(&b);
    }
    close_model(&b);
}

Test(overflow, is_found_among_ops_that_were_not_recorded) {
    static const overflow_case c = {"ffn_norm",         by_8000, "ffn_down", of_half,
                                    FD_OVERFLOW_RESULT, "",      "binary16", "its result reaches"};
    bench b = open_model(models[0]);
    char node[64];
    fd_error err = {0};
    fd_overflow o;
    recorded_run run = record_run(engine(&b, &c, node), prompt, N_PROMPT);
    int32_t out = fd_graph_find(b.graph, "blk.1.l_out");
    fd_explain_request r = ask_about(&run, b.graph, prompt, out);
    partial p = {&run, fd_graph_find(b.graph, "blk.1.ffn_gate"), out};
    r.tensor = recorded_outside;
    r.user = &p;
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (!recorded_outside(&p, r.args.node->input[k])) r.args.in[k] = NULL;
    must(fd_overflow_of(&r, 2, &o, &err), &err);
    expect(&c, &o, "blk.1.ffn_act"); /* the same number as ffn_down's input */
    recorded_run_free(&run);
    close_model(&b);
}

static void all_by_a_billion(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) ((float *)args->out)[i] *= 1e9f;
}

/* Sums in binary16 would overflow as well: where nothing is finite any cause of NaN looks like any other. */
Test(overflow, nan_alone_gets_no_name) {
    static const overflow_case c = {"ffn_act", all_by_a_billion, "ffn_down", of_half};
    bench b = open_model(models[0]);
    char node[64];
    fd_error err = {0};
    fd_explanation e;
    recorded_run run = record_run(engine(&b, &c, node), prompt, N_PROMPT);
    fd_explain_request r = ask_about(&run, b.graph, prompt, fd_graph_find(b.graph, node));
    r.numerics = fd_numerics_class_find("f16");
    r.n_output = 1e6;
    must(fd_explain(&r, &e, &err), &err);
    cr_expect(!e.named && e.why == FD_UNNAMED_LITTLE_EVIDENCE, "named %s", e.n_remaining ? e.remaining[0].name : "-");
    recorded_run_free(&run);
    close_model(&b);
}

/* Else an engine of a class that rounds to binary16 would overflow as its replay does, and be right. */
Test(overflow, is_never_what_a_class_does) {
    float x[] = {1e5f, 1.0001f, -7e4f}, block[32] = {3e9f};
    fd_dot_round(FD_DOT_F16, x, 1, 3);
    cr_expect(x[0] == 1e5f && x[1] == 1.0f && x[2] == -7e4f);
    fd_dot_round(FD_DOT_Q8_0, block, 1, 32);
    cr_expect(block[0] == 3e9f && block[1] == 0);
}

/* In text and JSON, also where a bug before it is the divergence. */
Test(overflow, stands_in_the_verdict) {
    bench b = open_bench(models[0], (recording){0});
    char node[64], *text = NULL, *json = NULL;
    size_t size;
    fd_error err = {0};
    fd_verdict v = judged(&b, engine(&b, &cases[0], node), (recording){.emulated = "f32"});
    cr_expect_str_eq(v.divergence.node, "blk.1.ffn_act");
    cr_expect_eq(v.replay.overflow.kind, FD_OVERFLOW_INPUT);
    FILE *to = open_memstream(&text, &size);
    fd_report_text(to, &v, NULL);
    fclose(to);
    cr_expect(strstr(text, "first NaN   blk.1.ffn_down: its input blk.1.ffn_act reaches"), "%s", text);
    to = open_memstream(&json, &size);
    must(fd_report_json(to, &v, &err), &err);
    fclose(to);
    json_t *root = json_loads(json, 0, NULL), *o = json_object_get(json_object_get(root, "replay"), "overflow");
    cr_expect_str_eq(json_string_value(json_object_get(o, "kind")), "input");
    cr_expect_str_eq(json_string_value(json_object_get(o, "input")), "blk.1.ffn_act");
    cr_expect_eq(json_integer_value(json_object_get(o, "position")), 2);
    json_decref(root);
    free(text);
    free(json);
    fd_verdict_free(&v);
    close_model(&b);
}

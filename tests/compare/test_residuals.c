/* What replay leaves of rows: which tensors depart though they stay within their bounds, which are suspects, and that one bug in a
 * layer is found and named from layer outputs of an engine whose bounds have room for it. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/attribute/plan.h"
#include "compare/attribute/residuals.h"
#include "compare/attribute/steps.h"
#include "tests/compare/replay_bench.h"

enum { N_ROW = 16, LAYER = 2 };

/* Rows of one layer's output of whose values so much is left. */
typedef struct rows_case {
    const char *what;
    bool cached;
    double left; /* of the rows [first, end) of layer LAYER; a ten-millionth of all others */
    int32_t first, end;
    bool departs, suspect;
    bool routed; /* the layer chose experts, and that was not recorded */
} rows_case;

static const rows_case cases[] = {
    {"a layer whose rows are all odd", false, 1e-3, 0, N_ROW, true, true},
    {"one odd row", false, 1e-3, 5, 6, false, false},
    {"a fifth of the rows, here and there nothing else", false, 1e-3, 4, 7, false, false},
    {"the last four rows", false, 1e-3, N_ROW - 4, N_ROW, true, true},
    {"decode alone, by little: a value that stayed in the cache", true, 1e-4, N_PREFILL, N_ROW, false, false},
    {"decode alone, by much", true, 1e-3, N_PREFILL, N_ROW, false, true},
    {"behind a cache, by little", true, 1e-4, 0, N_ROW, false, false},
    {"behind a cache, all rows by much, and no other layer", true, 1e-3, 0, N_ROW, true, true},
    {"behind a cache, a tail by little", true, 1e-4, 9, N_ROW, false, false},
    {"behind a cache, a tail by much", true, 1e-3, 9, N_ROW, false, true},
    {"behind a cache, more than steps can leave", true, 1e-1, 0, N_ROW, true, true},
    {"two rows by more than steps can leave", false, 1e-1, 4, 6, true, true},
    {"the same behind a choice of experts: others may have been chosen", false, 1e-1, 4, 6, false, true, true},
    {"NaN", false, NAN, 0, N_ROW, true, true},
    {"nothing odd", false, 1e-6, 0, N_ROW, false, false},
};

static fd_attribution_options options_of(const bench *b, const char *class_) {
    return (fd_attribution_options){
        .graph = b->graph, .cand = b->ref, .n_pos = N_ROW, .numerics = fd_numerics_class_find(class_)};
}

static bool *recorded_whole(const fd_attribution_options *options) {
    fd_attribution_options o = *options;
    fd_error err = {0};
    fd_replay_plan plan;
    o.n_pos = fd_trace_n_pos(o.cand); /* rows are made up, more than it has */
    must(fd_replay_plan_make(&o, &plan, &err), &err);
    bool *whole = plan.whole;
    plan.whole = NULL;
    fd_replay_plan_free(&plan);
    return whole;
}

static void open_residuals(const bench *b, const char *class_, fd_residuals *r) {
    fd_error err = {0};
    fd_attribution_options o = options_of(b, class_);
    bool *whole = recorded_whole(&o);
    must(fd_residuals_open(&o, whole, r, &err), &err);
    free(whole);
}

static void add_rows(fd_residuals *r, const fd_graph *graph, const rows_case *c) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (!strstr(node->name, ".l_out")) continue;
        for (int32_t p = 0; p < N_ROW; p++) {
            bool odd = node->layer == LAYER && p >= c->first && p < c->end;
            double replayed = 1, candidate = 1 + (odd ? c->left : 1e-7), tau = 1;
            fd_attribution_row row = {.node = node,
                                      .pos = p,
                                      .n_kv = N_ROW,
                                      .span_first = i - 1,
                                      .stride = 1,
                                      .candidate = &candidate,
                                      .replayed = &replayed,
                                      .tau = &tau};
            fd_node_finding finding = {.finding = FD_FOUND_NOISE, .node = i, .pos = p};
            bool right = fd_residuals_add(r, &row, &finding);
            cr_expect_eq(right, !(odd && !(c->left < 1e-5)), "%s, row %d", c->what, p);
        }
        r->cached[i] = c->cached;
        r->routed[i] = c->routed;
    }
}

Test(residuals, odd_rows_that_chance_does_not_give_depart_and_those_behind_a_cache_are_suspects) {
    bench b = open_bench(models[0], (recording){0});
    size_t n_node = (size_t)b.graph->n_node;
    fd_node_finding *finding = malloc(sizeof *finding * n_node), *suspect = malloc(sizeof *suspect * n_node);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_residuals r;
        fd_error err = {0};
        int32_t n_found = 0, at = fd_graph_find(b.graph, "blk.2.l_out");
        open_residuals(&b, "f32", &r);
        add_rows(&r, b.graph, &cases[i]);
        must(fd_residuals_judge(&r, finding, suspect, &err), &err);
        cr_expect_eq(finding[at].finding != FD_FOUND_NOTHING, cases[i].departs, "%s", cases[i].what);
        cr_expect_eq(suspect[at].finding != FD_FOUND_NOTHING, cases[i].suspect, "%s", cases[i].what);
        if (cases[i].departs) cr_expect_eq(finding[at].pos, cases[i].first, "%s", cases[i].what);
        for (size_t k = 0; k < n_node; k++) n_found += finding[k].finding != FD_FOUND_NOTHING;
        cr_expect_eq(n_found, cases[i].departs, "%s: %d tensors", cases[i].what, n_found);
        fd_residuals_free(&r);
    }
    free(finding);
    free(suspect);
    close_model(&b);
}

/* A prompt comes in chunks: decode begins after the last of them, and a bug of decode alone with it. Of one tensor that was recorded
 * alone nothing else tells what is odd. */
Test(residuals, decode_after_a_prompt_in_chunks_departs_where_its_step_begins) {
    bench b = open_bench(models[0], (recording){.first_chunk = 4});
    size_t n_node = (size_t)b.graph->n_node;
    const int32_t at = fd_graph_find(b.graph, "logits");
    fd_node_finding *finding = malloc(sizeof *finding * n_node), *suspect = malloc(sizeof *suspect * n_node);
    for (int begins = 0; begins < 2; begins++) {
        fd_residuals r;
        fd_error err = {0};
        open_residuals(&b, "f32", &r);
        cr_expect_eq(r.n_first, N_PREFILL);
        cr_expect(!r.begins[0] && r.begins[4] && !r.begins[5] && r.begins[N_PREFILL] && r.begins[N_PREFILL + 1]);
        r.begins[N_ROW - 4] = begins;
        for (int32_t p = 0; p < N_ROW; p++) {
            double replayed = 1, candidate = 1 + (p >= N_ROW - 4 ? 1e-4 : 1e-7), tau = 1;
            fd_attribution_row row = {.node = &b.graph->nodes[at],
                                      .pos = p,
                                      .n_kv = N_ROW,
                                      .stride = 1,
                                      .candidate = &candidate,
                                      .replayed = &replayed,
                                      .tau = &tau};
            fd_node_finding found = {.finding = FD_FOUND_NOISE, .node = at, .pos = p};
            fd_residuals_add(&r, &row, &found);
        }
        must(fd_residuals_judge(&r, finding, suspect, &err), &err);
        cr_expect_eq(suspect[at].finding != FD_FOUND_NOTHING, begins == 1);
        fd_residuals_free(&r);
    }
    free(finding);
    free(suspect);
    close_model(&b);
}

/* Of tensors that were recorded in some steps alone the other rows came to the caches on a way that was not. */
Test(residuals, a_cache_of_which_some_rows_were_recorded_is_an_unrecorded_one) {
    for (int32_t step_first = 0; step_first < 2; step_first++) {
        bench b = open_bench(models[0], (recording){.step_first = step_first});
        const int32_t k = fd_graph_find(b.graph, "blk.2.cache_k"), v = fd_graph_find(b.graph, "blk.2.cache_v");
        fd_residuals r;
        open_residuals(&b, "f16kv", &r);
        cr_expect(fd_trace_has_data(b.ref, "blk.1.cache_v"));
        cr_expect_eq(r.cached[k], step_first > 0);
        cr_expect_eq(r.cached[v], step_first > 0);
        fd_residuals_free(&r);
        close_model(&b);
    }
}

/* Wide rows, or many products between recorded tensors, lose values to the other side of a step: twice the step may be left, of blocks in each layer. */
#define ROOT_OF_LAYERS 2.449489742783178 /* six */
Test(residuals, what_wide_rows_lose_to_steps_is_no_bug) {
    static const struct {
        const char *model, *class_, *recorded, *node, *kv_type;
        double leave;
    } wide[] = {
        {"kjv-llama", "ggml-cpu", "token_embd,*l_out,logits", "blk.2.l_out", NULL, 0}, /* 0.05 a row */
        {"kjv-llama", "ggml-cpu", "logits", "logits", NULL, ROOT_OF_LAYERS * 0x1p-6},  /* 0.3 a row */
        {"kjv-llama", "ggml-cpu", "logits", "logits", "q8_0/f16", ROOT_OF_LAYERS * 0x1p-6},
        {"kjv-llama", "ggml-cpu", "logits", "logits", "iq4_nl/f16", 0x1p-2}, /* they take values of K over */
        {"kjv-llama", "ggml-cpu", "logits", "logits", "f16/q5_0", 0x1p-3},
        {"kjv-llama", "f32", "logits", "logits", NULL, 0},
        {"kjv-qwen2", "ggml-cpu", "token_embd,*l_out,logits", "blk.2.l_out", NULL, 0}, /* 0.75 a row, of binary16 */
        {"kjv-qwen2", "ggml-cpu", "logits", "logits", NULL, 0x1p-10},
        {"kjv-qwen2", "f16kv", "logits", "logits", NULL, 0},
    };
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        for (size_t m = 0; m < N_MODEL; m++) {
            if (!strstr(models[m], wide[i].model)) continue;
            bench b = open_bench(models[m], (recording){.tensors = wide[i].recorded});
            int32_t node = fd_graph_find(b.graph, wide[i].node);
            fd_attribution_options o = options_of(&b, wide[i].class_);
            o.kv_type = wide[i].kv_type;
            bool *whole = recorded_whole(&o);
            double sums, leave = fd_steps_leave(&o, whole, node, &sums);
            free(whole);
            cr_expect_float_eq(leave, wide[i].leave, 1e-9, "%s, %s, %s: %g", wide[i].model, wide[i].class_,
                               wide[i].recorded, leave);
            close_model(&b);
        }
}

/* The engine makes int8 blocks, as ggml does; RoPE's tables are binary16 in one layer. A layer's bound is as large as the layer. */
Test(residuals, a_bug_in_one_layer_is_found_and_named_from_layer_outputs) {
    static const char *const engines[] = {"q8", "f32"};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
        fd_graph *faulty;
        fd_error err = {0};
        fd_fault_owner *owner = NULL;
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        must(fd_fault_apply("rope_table_f16@2", faulty, &owner, &err), &err);
        fd_verdict v =
            judged(&b, faulty,
                   (recording){.emulated = engines[i], .numerics = "unknown", .tensors = "token_embd,*l_out,logits"});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_eq(v.status, FD_DIVERGED, "%s: %s", engines[i], fd_verdict_status_name(v.status));
        cr_expect_str_eq(v.divergence.node, "blk.2.l_out", "%s", engines[i]);
        cr_expect(e->named && strcmp(e->remaining[0].name, "rope_table_f16") == 0, "%s: %s", engines[i],
                  e->remaining[0].name);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
        fd_fault_owner_free(owner);
    }
    close_model(&b);
}

static void three_times_in_decode(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < fd_node_width(args->node) && args->n_pos == 1; i++) ((float *)args->out)[i] *= 3;
}

/* Two decode steps of an engine of int8 blocks, layer outputs alone: few rows, but far more is left in them than blocks leave. */
Test(residuals, a_bug_of_decode_alone_is_found_in_two_steps_of_layer_outputs) {
    bench b = open_bench(models[0], (recording){0});
    for (int buggy = 0; buggy < 2; buggy++) {
        fd_graph *faulty;
        fd_error err = {0};
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        for (int32_t i = 0; i < faulty->n_node && buggy; i++)
            if (strstr(faulty->nodes[i].name, "attn_proj")) faulty->nodes[i].override = three_times_in_decode;
        fd_verdict v = judged(
            &b, faulty, (recording){.emulated = "q8", .numerics = "unknown", .tensors = "token_embd,*l_out,logits"});
        cr_expect_eq(v.status, buggy ? FD_DIVERGED : FD_NOISE, "%d: %s", buggy, fd_verdict_status_name(v.status));
        if (buggy) cr_expect_str_eq(v.divergence.node, "blk.0.l_out");
        if (buggy) cr_expect_eq(v.divergence.pos, N_PREFILL, "position %d", (int)v.divergence.pos);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
    }
    close_model(&b);
}

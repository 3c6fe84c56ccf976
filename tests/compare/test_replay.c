/* Replay on runs of the bundled models: clean runs in every emulated precision are noise, a fault is found at the
 * node that has it, and in whichever of the two traces it lies. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "reference_cpu/reference.h"
#include "tests/compare/replay_bench.h"

/* ---- clean runs ---- */

Test(replay, a_clean_run_is_noise_in_every_class_recorded_or_inferred) {
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        for (int32_t i = 0; i < fd_emulate_class_count(); i++) {
            const char *name = fd_emulate_class_at(i)->name;
            expect_noise(judged(&b, b.graph, (recording){.emulated = name}), models[m], name);
            if (i % N_MODEL != m) continue; /* inferred on one of them: that tries all classes */
            recording silent = {.emulated = name, .numerics = "unknown"};
            expect_noise(judged(&b, b.graph, silent), models[m], name);
        }
        close_model(&b);
    }
}

Test(replay, a_q8act_run_is_noise_of_class_q8_recorded_or_inferred) {
    bench b = open_bench(models[0], (recording){0});
    static const char *const said[] = {NULL, "unknown"};
    for (int i = 0; i < 2; i++) {
        fd_verdict v = judged(&b, b.graph, (recording){.q8act = true, .numerics = said[i]});
        cr_expect_str_eq(v.replay.numerics, i == 0 ? "q8" : "int8-f32kv"); /* whose roundings are repeated */
        expect_noise(v, models[0], "q8act");
    }
    /* the other way round: exact beside a reference in q8act, and llama.cpp's way of rounding beside it */
    fd_trace *q8 = record(b.graph, (recording){.q8act = true});
    expect_noise(judge(b.graph, q8, record(b.graph, (recording){.emulated = "q8"}), NULL), models[0],
                 "q8 beside q8act");
    fd_verdict v = judge(b.graph, b.ref, record(b.graph, (recording){.q8act = true}), "f32");
    cr_expect_eq(v.status, FD_DIVERGED, "as binary32 it is an error");
    fd_verdict_free(&v);
    fd_trace_close(q8);
    close_model(&b);
}

Test(replay, a_trace_in_16_bits_is_inferred_to_be_of_a_class_that_stores_them) {
    static const struct {
        const char *emulated, *inferred;
        uint32_t store;
    } cases[] = {{"hf-bf16", "hf-bf16", FD_BF16}, {"hf-f16", "hf-f16", FD_F16}, {"f16", "f16", FD_F32}};
    bench b = open_bench(models[1], (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        recording silent = {.emulated = cases[i].emulated, .numerics = "unknown", .store = cases[i].store};
        fd_verdict v = judged(&b, b.graph, silent);
        cr_expect_str_eq(v.replay.numerics, cases[i].inferred, "%s: %s", cases[i].emulated, v.replay.numerics);
        expect_noise(v, models[1], cases[i].emulated);
    }
    close_model(&b);
}

Test(replay, the_same_noise_is_an_error_in_a_stricter_class) {
    static const char *const pairs[][2] = {
        {"f16", "f32"}, {"bf16", "f16"}, {"q8", "f32"}, {"f16kv", "f32"}, {"hf-f16", "f16"}};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        fd_verdict v = judge(b.graph, b.ref, record(b.graph, (recording){.emulated = pairs[i][0]}), pairs[i][1]);
        cr_expect_eq(v.status, FD_DIVERGED, "%s as %s", pairs[i][0], pairs[i][1]);
        fd_verdict_free(&v);
    }
    close_model(&b);
}

Test(replay, equal_bits_stay_identical) {
    bench b = open_bench(models[0], (recording){0});
    fd_verdict v = judged(&b, b.graph, (recording){0});
    cr_expect_eq(v.status, FD_IDENTICAL);
    cr_expect(!v.replay.done);
    fd_verdict_free(&v);
    close_model(&b);
}

/* ---- faults ---- */

/* More of them in test_named.c. */
Test(replay, a_fault_is_found_at_its_node_in_noise) {
    static const char *const faults[][2] = {{"weight_in_out@2", "blk.2.attn_q"},
                                            {"softmax_all_masked@2", "blk.2.attn_weights"}};
    static const char *const classes[] = {NULL, "f32", "f16", "q8", "hf-bf16"};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        for (size_t f = 0; f < sizeof faults / sizeof *faults; f++)
            for (size_t c = 0; c < sizeof classes / sizeof *classes; c++) {
                char what[96];
                fd_graph *faulty = faulted(&b, faults[f][0]);
                snprintf(what, sizeof what, "%s in %s, %s", faults[f][0], models[m], classes[c] ? classes[c] : "exact");
                fd_verdict v = judged(&b, faulty, (recording){.emulated = classes[c]});
                expect_at(&v, faults[f][1], what);
                cr_expect(v.replay.introduced > 0.9, "%s: introduced %.3f", what, v.replay.introduced);
                fd_verdict_free(&v);
            }
        close_model(&b);
    }
}

Test(replay, of_two_faults_the_first_is_found_and_the_second_named_as_the_next) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty = faulted(&b, "kv_off_by_one@3+weight_in_out@1");
    fd_verdict v = judged(&b, faulty, (recording){.emulated = "bf16"});
    expect_at(&v, "blk.1.attn_q", "two faults");
    cr_expect_str_eq(v.replay.next, "blk.1.attn_k");
    cr_expect_gt(v.replay.n_inherited, 0);
    fd_verdict_free(&v);
    close_model(&b);
}

static void twice_as_large(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < (int64_t)args->n_pos * args->node->shape[0]; i++) ((float *)args->out)[i] *= 2;
}
static void one_nan_later(const fd_op_args *args) {
    run_clean(args);
    int64_t n = args->node->shape[0];
    if (args->pos0 <= 4 && 4 < args->pos0 + args->n_pos) ((float *)args->out)[(4 - args->pos0) * n + 17] = NAN;
}

Test(replay, an_error_above_a_fault_makes_it_both) {
    bench b = open_model(models[1]);
    fd_graph *graph = spoiled(&b, "blk.0.l_out", twice_as_large);
    graph->nodes[fd_graph_find(graph, "blk.2.attn_out")].override = third_head_scaled;
    b.ref = record(b.graph, (recording){0});
    fd_trace *cand = record(graph, (recording){.emulated = "f32"});
    fd_attribution_options how = {.graph = b.graph,
                                  .ref = b.ref,
                                  .cand = cand,
                                  .n_pos = N_PREFILL,
                                  .op = fd_reference_op,
                                  .numerics = fd_numerics_class_find("f32")};
    fd_attribution j;
    fd_error err = {0};
    must(fd_attribute_errors(&how, &j, &err), &err);
    cr_expect_eq(j.finding[fd_graph_find(b.graph, "blk.0.ffn_inp")], FD_FOUND_INHERITED, "rounding");
    cr_expect_eq(j.finding[fd_graph_find(b.graph, "blk.0.l_out")], FD_FOUND_INTRODUCED);
    cr_expect_geq(j.finding[fd_graph_find(b.graph, "blk.1.attn_q")], FD_FOUND_INHERITED);
    cr_expect_lt(j.finding[fd_graph_find(b.graph, "blk.1.attn_q")], FD_FOUND_INTRODUCED);
    cr_expect_eq(j.finding[fd_graph_find(b.graph, "blk.2.attn_out")], FD_FOUND_BOTH);
    fd_attribution_free(&j);
    fd_trace_close(cand);
    close_model(&b);
}

Test(replay, one_head_off_by_a_hundredth_is_found_and_the_head_named) {
    static const char *const classes[] = {NULL, "f32", "f16", "f16kv", "q8"};
    bench b = open_bench(models[1], (recording){0});
    fd_graph *graph = spoiled(&b, "blk.2.attn_out", third_head_scaled);
    for (size_t c = 0; c < sizeof classes / sizeof *classes; c++) {
        fd_verdict v = judged(&b, graph, (recording){.emulated = classes[c]});
        expect_at(&v, "blk.2.attn_out", classes[c] ? classes[c] : "exact");
        cr_expect_eq(v.replay.n_slice_beyond, 1);
        cr_expect_eq(v.divergence.diff.first.index / 32, 3);
        cr_expect_eq(v.replay.n_introduced, 1 + N_DECODE, "once in every step");
        fd_verdict_free(&v);
    }
    close_model(&b);
}

static void scaled_and_one_nan(const fd_op_args *args) {
    twice_as_large(args);
    if (args->pos0 == 0) ((float *)args->out)[17] = NAN;
}

Test(replay, the_map_holds_the_worst_of_every_node_position_and_head) {
    bench b = open_bench(models[1], (recording){0});
    fd_graph *graph = spoiled(&b, "blk.2.attn_out", third_head_scaled);
    fd_verdict v = judged(&b, graph, (recording){.emulated = "f32"});
    const fd_verdict_map *m = &v.map;
    int32_t at = fd_graph_find(b.graph, "blk.2.attn_out");
    cr_assert_eq(m->n_node, b.graph->n_node);
    cr_expect_eq(m->n_pos, N_PREFILL + N_DECODE);
    cr_expect_str_eq(m->cells[at].finding, "INTRODUCED");
    cr_expect_eq(m->cells[at].n_head, b.graph->hparams.n_head);
    float worst = 0;
    for (int32_t p = 0; p < m->n_pos; p++) {
        float z = m->by_pos[at * m->n_pos + p];
        cr_expect_gt(z, 1, "position %d", p);
        worst = z > worst ? z : worst;
    }
    for (int32_t h = 0; h < m->cells[at].n_head; h++)
        cr_expect_eq(m->by_head[at * m->most_heads + h] > 1, h == 3, "head %d", h);
    cr_expect_eq(m->cells[at].z, worst);
    cr_expect_eq(m->by_head[at * m->most_heads + 3], worst);
    for (int32_t i = 0; i < at; i++) cr_expect(m->cells[i].z >= 0 && m->cells[i].z <= 1, "%s", m->cells[i].name);
    fd_verdict_free(&v);
    close_model(&b);
}

Test(replay, a_new_nan_ranks_before_every_number_of_its_row) {
    static const char *const classes[] = {NULL, "f32"};
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = spoiled(&b, "blk.1.ffn_norm", scaled_and_one_nan);
    for (int c = 0; c < 2; c++) {
        fd_verdict v = judged(&b, graph, (recording){.emulated = classes[c]});
        expect_at(&v, "blk.1.ffn_norm", "NaN beside numbers that are twice too large");
        cr_expect_eq(v.divergence.diff.first.index, 17);
        cr_expect(isnan(v.replay.candidate));
        cr_expect_eq(v.replay.introduced, 1, "no arithmetic shares a NaN out");
        fd_verdict_free(&v);
    }
    close_model(&b);
}

Test(replay, a_nan_behind_the_divergence_is_named_too) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = spoiled(&b, "blk.0.ffn_norm", twice_as_large);
    graph->nodes[fd_graph_find(graph, "blk.3.ffn_norm")].override = one_nan_later;
    fd_verdict v = judged(&b, graph, (recording){.emulated = "f16"});
    expect_at(&v, "blk.0.ffn_norm", "the first of two");
    cr_expect_str_eq(v.replay.not_finite, "blk.3.ffn_norm");
    cr_expect_eq(v.replay.not_finite_pos, 4);
    fd_verdict_free(&v);
    close_model(&b);
}

Test(replay, a_nan_from_finite_inputs_is_introduced_where_it_first_stands) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *graph = spoiled(&b, "blk.1.ffn_norm", one_nan_later);
    fd_verdict v = judged(&b, graph, (recording){.emulated = "f16"});
    expect_at(&v, "blk.1.ffn_norm", "NaN");
    cr_expect_eq(v.divergence.pos, 4);
    cr_expect_eq(v.divergence.diff.first.index, 17);
    cr_expect_eq(v.replay.n_nan_new, 1);
    cr_expect_eq(v.replay.n_introduced, 1, "what follows from a NaN is inherited");
    fd_verdict_free(&v);
    close_model(&b);
}

Test(replay, a_wrong_reference_is_told_from_a_wrong_candidate) {
    bench b = open_model(models[1]);
    fd_graph *graph = spoiled(&b, "blk.2.attn_out", third_head_scaled);
    b.ref = record(graph, (recording){0});
    fd_verdict v = judged(&b, b.graph, (recording){.emulated = "f32"});
    expect_at(&v, "blk.2.attn_out", "reference");
    cr_expect(v.replay.of_reference);
    fd_verdict_free(&v);
    close_model(&b);
}

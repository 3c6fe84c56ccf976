/* Replay on runs of the bundled models: clean runs in every emulated precision are noise, a fault is found at the node that
 * has it, in spans where tensors are missing, and in whichever of the two traces it lies. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/compare.h"
#include "faults/faults.h"
#include "reference_cpu/reference.h"
#include "tests/compare/replay_bench.h"

static void expect_noise(fd_verdict v, const char *model, const char *what) {
    cr_expect_eq(v.status, FD_NOISE, "%s %s: %s at %s, class %s (%s), z %g", model, what,
                 fd_verdict_status_name(v.status), v.divergence.node, v.replay.numerics, v.replay.source, v.replay.z);
    cr_expect_eq(fd_verdict_exit_status(&v), 0);
    cr_expect_eq(v.divergence.kind, FD_NO_DIVERGENCE);
    cr_expect_eq(v.replay.n_introduced, 0);
    cr_expect(v.replay.n_tensor > 0 && v.replay.noisiest_z <= 1);
    fd_verdict_free(&v);
}

/* ---- clean runs ---- */

Test(replay, a_clean_run_is_noise_in_every_class_recorded_or_inferred) {
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        fd_trace *ref = record(b.graph, (recording){0});
        for (int32_t i = 0; i < fd_emulate_class_count(); i++) {
            const char *name = fd_emulate_class_at(i)->name;
            expect_noise(judge(b.graph, ref, record(b.graph, (recording){.emulated = name}), NULL), models[m], name);
            recording silent = {.emulated = name, .numerics = "unknown"};
            expect_noise(judge(b.graph, ref, record(b.graph, silent), NULL), models[m], name);
        }
        fd_trace_close(ref);
        close_model(&b);
    }
}

Test(replay, a_q8act_run_is_noise_of_class_q8_recorded_or_inferred) {
    bench b = open_model(models[0]);
    fd_trace *ref = record(b.graph, (recording){0});
    static const char *const said[] = {NULL, "unknown"};
    for (int i = 0; i < 2; i++) {
        fd_verdict v = judge(b.graph, ref, record(b.graph, (recording){.q8act = true, .numerics = said[i]}), NULL);
        cr_expect_str_eq(v.replay.numerics, "q8", "%s", v.replay.numerics);
        expect_noise(v, models[0], "q8act");
    }
    /* the other way round: exact beside a reference in q8act, and llama.cpp's way of rounding beside it */
    fd_trace *q8 = record(b.graph, (recording){.q8act = true});
    expect_noise(judge(b.graph, q8, record(b.graph, (recording){.emulated = "q8"}), NULL), models[0],
                 "q8 beside q8act");
    fd_verdict v = judge(b.graph, ref, record(b.graph, (recording){.q8act = true}), "f32");
    cr_expect_eq(v.status, FD_DIVERGED, "as binary32 it is an error");
    fd_verdict_free(&v);
    fd_trace_close(q8);
    fd_trace_close(ref);
    close_model(&b);
}

Test(replay, a_trace_in_16_bits_is_inferred_to_be_of_a_class_that_stores_them) {
    static const struct {
        const char *emulated, *inferred;
        uint32_t store;
    } cases[] = {{"hf-bf16", "hf-bf16", FD_BF16}, {"hf-f16", "hf-f16", FD_F16}, {"f16", "f16", FD_F32}};
    bench b = open_model(models[1]);
    fd_trace *ref = record(b.graph, (recording){0});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        recording silent = {.emulated = cases[i].emulated, .numerics = "unknown", .store = cases[i].store};
        fd_verdict v = judge(b.graph, ref, record(b.graph, silent), NULL);
        cr_expect_str_eq(v.replay.numerics, cases[i].inferred, "%s: %s", cases[i].emulated, v.replay.numerics);
        expect_noise(v, models[1], cases[i].emulated);
    }
    fd_trace_close(ref);
    close_model(&b);
}

Test(replay, the_same_noise_is_an_error_in_a_stricter_class) {
    static const char *const pairs[][2] = {
        {"f16", "f32"}, {"bf16", "f16"}, {"q8", "f32"}, {"f16kv", "f32"}, {"hf-f16", "f16"}};
    bench b = open_model(models[0]);
    fd_trace *ref = record(b.graph, (recording){0});
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        fd_verdict v = judge(b.graph, ref, record(b.graph, (recording){.emulated = pairs[i][0]}), pairs[i][1]);
        cr_expect_eq(v.status, FD_DIVERGED, "%s as %s", pairs[i][0], pairs[i][1]);
        fd_verdict_free(&v);
    }
    fd_trace_close(ref);
    close_model(&b);
}

Test(replay, equal_bits_stay_identical) {
    bench b = open_model(models[0]);
    fd_trace *ref = record(b.graph, (recording){0});
    fd_verdict v = judge(b.graph, ref, record(b.graph, (recording){0}), NULL);
    cr_expect_eq(v.status, FD_IDENTICAL);
    cr_expect(!v.replay.done);
    fd_verdict_free(&v);
    fd_trace_close(ref);
    close_model(&b);
}

/* ---- faults ---- */

static void expect_at(fd_verdict *v, const char *node, const char *what) {
    cr_expect_eq(v->status, FD_DIVERGED, "%s: %s", what, fd_verdict_status_name(v->status));
    cr_expect_str_eq(v->divergence.node, node, "%s: found at %s, expected %s", what, v->divergence.node, node);
    cr_expect(!(v->replay.z <= 1), "%s", what);
    if (v->replay.shares_known) cr_expect_float_eq(v->replay.introduced + v->replay.propagated, 1, 1e-12, "%s", what);
}

Test(replay, every_fault_is_found_at_its_node_in_noise) {
    static const char *const faults[][2] = {
        {"rope_pairing@1", "blk.1.attn_q_rope"}, {"weight_in_out@2", "blk.2.attn_q"},
        {"kv_off_by_one@1", "blk.1.cache_k"},    {"q0_only@0", "blk.0.attn_scores"},
        {"bytes_read_short@3", "blk.3.attn_q"},  {"softmax_all_masked@2", "blk.2.attn_weights"}};
    static const char *const classes[] = {NULL, "f32", "f16", "q8", "hf-bf16"};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        fd_trace *ref = record(b.graph, (recording){0});
        for (size_t f = 0; f < sizeof faults / sizeof *faults; f++)
            for (size_t c = 0; c < sizeof classes / sizeof *classes; c++) {
                fd_error err = {0};
                fd_graph *faulty;
                fd_fault_owner *owner;
                char what[96];
                must(fd_graph_clone(b.graph, &faulty, &err), &err);
                must(fd_fault_apply(faults[f][0], faulty, &owner, &err), &err);
                snprintf(what, sizeof what, "%s in %s, %s", faults[f][0], models[m], classes[c] ? classes[c] : "exact");
                fd_verdict v = judge(b.graph, ref, record(faulty, (recording){.emulated = classes[c]}), NULL);
                expect_at(&v, faults[f][1], what);
                cr_expect(v.replay.introduced > 0.9, "%s: introduced %.3f", what, v.replay.introduced);
                fd_verdict_free(&v);
                fd_graph_free(faulty);
                fd_fault_owner_free(owner);
            }
        fd_trace_close(ref);
        close_model(&b);
    }
}

Test(replay, of_two_faults_the_first_is_found_and_the_second_named_as_the_next) {
    bench b = open_model(models[0]);
    fd_trace *ref = record(b.graph, (recording){0});
    fd_error err = {0};
    fd_graph *faulty;
    fd_fault_owner *owners[2];
    must(fd_graph_clone(b.graph, &faulty, &err), &err);
    must(fd_fault_apply("kv_off_by_one@3", faulty, &owners[0], &err), &err);
    must(fd_fault_apply("weight_in_out@1", faulty, &owners[1], &err), &err);
    fd_verdict v = judge(b.graph, ref, record(faulty, (recording){.emulated = "bf16"}), NULL);
    expect_at(&v, "blk.1.attn_q", "two faults");
    cr_expect_str_eq(v.replay.next, "blk.1.attn_k");
    cr_expect_gt(v.replay.n_inherited, 0);
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    for (int i = 0; i < 2; i++) fd_fault_owner_free(owners[i]);
    fd_trace_close(ref);
    close_model(&b);
}

/* Runs the op, then spoils its result. */
static void run_clean(const fd_op_args *args) {
    fd_node node = *args->node;
    fd_op_args clean = *args;
    node.override = NULL;
    clean.node = &node;
    fd_reference_op(FD_NUMERICS_EXACT, &clean);
}
static void third_head_scaled(const fd_op_args *args) {
    run_clean(args);
    int64_t d = args->node->shape[1], n = (int64_t)args->node->shape[0] * d;
    for (int64_t r = 0; r < args->n_pos; r++)
        for (int64_t i = 3 * d; i < 4 * d; i++) ((float *)args->out)[r * n + i] *= 1.01f;
}
static void third_head_twice(const fd_op_args *args) {
    run_clean(args);
    int64_t d = args->node->shape[1], n = (int64_t)args->node->shape[0] * d;
    for (int64_t r = 0; r < args->n_pos; r++)
        for (int64_t i = 3 * d; i < 4 * d; i++) ((float *)args->out)[r * n + i] *= 2;
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

static fd_graph *spoiled(const bench *b, const char *node, fd_override_fn how) {
    fd_graph *graph;
    fd_error err = {0};
    must(fd_graph_clone(b->graph, &graph, &err), &err);
    graph->nodes[fd_graph_find(graph, node)].override = how;
    return graph;
}

Test(replay, an_error_above_a_fault_makes_it_both) {
    bench b = open_model(models[1]);
    fd_graph *graph = spoiled(&b, "blk.0.l_out", twice_as_large);
    graph->nodes[fd_graph_find(graph, "blk.2.attn_out")].override = third_head_scaled;
    fd_trace *ref = record(b.graph, (recording){0}), *cand = record(graph, (recording){.emulated = "f32"});
    fd_judge_options how = {.graph = b.graph,
                            .ref = ref,
                            .cand = cand,
                            .n_pos = N_PREFILL,
                            .op = fd_reference_op,
                            .numerics = fd_numerics_class_find("f32")};
    fd_judgement j;
    fd_error err = {0};
    must(fd_judge_replay(&how, &j, &err), &err);
    cr_expect_eq(j.finding[fd_graph_find(b.graph, "blk.0.ffn_inp")], FD_FOUND_INHERITED, "rounding");
    cr_expect_eq(j.finding[fd_graph_find(b.graph, "blk.0.l_out")], FD_FOUND_INTRODUCED);
    cr_expect_geq(j.finding[fd_graph_find(b.graph, "blk.1.attn_q")], FD_FOUND_INHERITED);
    cr_expect_lt(j.finding[fd_graph_find(b.graph, "blk.1.attn_q")], FD_FOUND_INTRODUCED);
    cr_expect_eq(j.finding[fd_graph_find(b.graph, "blk.2.attn_out")], FD_FOUND_BOTH);
    fd_judgement_free(&j);
    fd_trace_close(ref);
    fd_trace_close(cand);
    fd_graph_free(graph);
    close_model(&b);
}

Test(replay, one_head_off_by_a_hundredth_is_found_and_the_head_named) {
    static const char *const classes[] = {NULL, "f32", "f16", "f16kv", "q8"};
    bench b = open_model(models[1]);
    fd_trace *ref = record(b.graph, (recording){0});
    fd_graph *graph = spoiled(&b, "blk.2.attn_out", third_head_scaled);
    for (size_t c = 0; c < sizeof classes / sizeof *classes; c++) {
        fd_verdict v = judge(b.graph, ref, record(graph, (recording){.emulated = classes[c]}), NULL);
        expect_at(&v, "blk.2.attn_out", classes[c] ? classes[c] : "exact");
        cr_expect_eq(v.replay.n_slice_beyond, 1);
        cr_expect_eq(v.divergence.diff.first.index / 32, 3);
        cr_expect_eq(v.replay.n_introduced, 1 + N_DECODE, "once in every step");
        fd_verdict_free(&v);
    }
    fd_graph_free(graph);
    fd_trace_close(ref);
    close_model(&b);
}

static void scaled_and_one_nan(const fd_op_args *args) {
    twice_as_large(args);
    if (args->pos0 == 0) ((float *)args->out)[17] = NAN;
}

Test(replay, the_map_holds_the_worst_of_every_node_position_and_head) {
    bench b = open_model(models[1]);
    fd_trace *ref = record(b.graph, (recording){0});
    fd_graph *graph = spoiled(&b, "blk.2.attn_out", third_head_scaled);
    fd_verdict v = judge(b.graph, ref, record(graph, (recording){.emulated = "f32"}), NULL);
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
    fd_graph_free(graph);
    fd_trace_close(ref);
    close_model(&b);
}

Test(replay, a_new_nan_ranks_before_every_number_of_its_row) {
    static const char *const classes[] = {NULL, "f32"};
    bench b = open_model(models[0]);
    fd_trace *ref = record(b.graph, (recording){0});
    fd_graph *graph = spoiled(&b, "blk.1.ffn_norm", scaled_and_one_nan);
    for (int c = 0; c < 2; c++) {
        fd_verdict v = judge(b.graph, ref, record(graph, (recording){.emulated = classes[c]}), NULL);
        expect_at(&v, "blk.1.ffn_norm", "NaN beside numbers that are twice too large");
        cr_expect_eq(v.divergence.diff.first.index, 17);
        cr_expect(isnan(v.replay.candidate));
        cr_expect_eq(v.replay.introduced, 1, "no arithmetic shares a NaN out");
        fd_verdict_free(&v);
    }
    fd_graph_free(graph);
    fd_trace_close(ref);
    close_model(&b);
}

Test(replay, a_nan_behind_the_divergence_is_named_too) {
    bench b = open_model(models[0]);
    fd_trace *ref = record(b.graph, (recording){0});
    fd_graph *graph = spoiled(&b, "blk.0.ffn_norm", twice_as_large);
    graph->nodes[fd_graph_find(graph, "blk.3.ffn_norm")].override = one_nan_later;
    fd_verdict v = judge(b.graph, ref, record(graph, (recording){.emulated = "f16"}), NULL);
    expect_at(&v, "blk.0.ffn_norm", "the first of two");
    cr_expect_str_eq(v.replay.not_finite, "blk.3.ffn_norm");
    cr_expect_eq(v.replay.not_finite_pos, 4);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    fd_trace_close(ref);
    close_model(&b);
}

static const char *const spans[] = {"*l_out", "*attn_q,*attn_norm,*attn_out,*l_out", "logits", "*cache*,*l_out",
                                    "*[!s]"};
enum { N_SPAN = sizeof spans / sizeof *spans };

Test(replay, a_clean_run_is_never_an_error_through_any_span) {
    int32_t n_noise = 0, n_blind = 0;
    static const char *const classes[] = {"f16", "q8", "bf16"};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        fd_trace *ref = record(b.graph, (recording){0});
        for (int i = 0; i < 3; i++)
            for (int s = m; s < N_SPAN; s += N_MODEL) { /* half of them with each model */
                const char *name = classes[i];
                fd_verdict v =
                    judge(b.graph, ref, record(b.graph, (recording){.emulated = name, .tensors = spans[s]}), NULL);
                n_noise += v.status == FD_NOISE;
                n_blind += v.status == FD_INCOMPLETE;
                cr_expect_neq(v.status, FD_DIVERGED, "%s %s %s: %s, z %g", models[m], name, spans[s], v.divergence.node,
                              v.replay.z);
                bool said = v.n_reason && strstr(v.reasons[v.n_reason - 1], "cannot tell at");
                cr_expect(v.status != FD_INCOMPLETE || said, "%s %s %s", models[m], name, spans[s]);
                fd_verdict_free(&v);
            }
        fd_trace_close(ref);
        close_model(&b);
    }
    fprintf(stderr, "spans of clean runs: %d noise, %d cannot tell\n", n_noise, n_blind);
    cr_expect_gt(n_noise, n_blind);
}

Test(replay, attention_that_is_not_seen_may_be_fused_or_not_and_its_error_is_found) {
    static const struct {
        const char *emulated;
        uint32_t store;
    } cases[N_MODEL] = {{"hf-bf16", FD_BF16}, {"hf-f16", FD_F16}};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        fd_graph *graph = spoiled(&b, "blk.2.attn_out", third_head_twice);
        fd_trace *ref = record(b.graph, (recording){0});
        recording unseen = {
            .emulated = cases[m].emulated, .numerics = "unknown", .store = cases[m].store, .tensors = "*[!s]"};
        expect_noise(judge(b.graph, ref, record(b.graph, unseen), NULL), models[m], cases[m].emulated);
        fd_verdict v = judge(b.graph, ref, record(graph, unseen), NULL);
        expect_at(&v, "blk.2.attn_out", cases[m].emulated);
        fd_verdict_free(&v);
        fd_trace_close(ref);
        fd_graph_free(graph);
        close_model(&b);
    }
}

Test(replay, a_fault_inside_a_span_is_no_noise) {
    static const char *const faults[] = {"rope_pairing@2", "missing_qkv_bias@0", "gelu_erf@2"};
    static const char *const classes[] = {"f16", "q8"};
    int32_t n_found = 0, n = 0;
    bench b = open_model(models[1]);
    fd_trace *ref = record(b.graph, (recording){0});
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        fd_error err = {0};
        fd_graph *graph;
        fd_fault_owner *owner;
        must(fd_graph_clone(b.graph, &graph, &err), &err);
        must(fd_fault_apply(faults[f], graph, &owner, &err), &err);
        for (int c = 0; c < 2; c++)
            for (int s = 0; s < 2; s++) {
                fd_verdict v =
                    judge(b.graph, ref, record(graph, (recording){.emulated = classes[c], .tensors = spans[s]}), NULL);
                n++;
                n_found += v.status == FD_DIVERGED;
                if (v.status != FD_DIVERGED)
                    fprintf(stderr, "  %s, %s, %s: %s\n", faults[f], classes[c], spans[s],
                            fd_verdict_status_name(v.status));
                fd_verdict_free(&v);
            }
        fd_graph_free(graph);
        fd_fault_owner_free(owner);
    }
    fprintf(stderr, "faults inside spans: %d of %d found\n", n_found, n);
    cr_expect_eq(n_found, n);
    fd_trace_close(ref);
    close_model(&b);
}

/* Records only the streams, then what the verdict advises, then what that advises. */
Test(replay, a_span_narrows_to_the_node_by_the_verdicts_own_advice) {
    static const char *const faults[] = {"rope_pairing@2", "eps_outside_root@1", "q0_only@3", "logit_scale"};
    static const char *const at[] = {"blk.2.attn_q_rope", "blk.1.attn_norm", "blk.3.attn_scores", "logits"};
    bench b = open_model(models[1]);
    fd_trace *ref = record(b.graph, (recording){0});
    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        fd_error err = {0};
        fd_graph *graph;
        fd_fault_owner *owner;
        char globs[160] = "logits";
        int32_t n = 0;
        must(fd_graph_clone(b.graph, &graph, &err), &err);
        must(fd_fault_apply(faults[f], graph, &owner, &err), &err);
        for (bool span = true; span && n < 5; n++) {
            fd_verdict v = judge(b.graph, ref, record(graph, (recording){.tensors = globs}), NULL);
            cr_expect_eq(v.status, FD_DIVERGED, "%s with %s", faults[f], globs);
            span = v.replay.span_first[0] != '\0';
            cr_expect_eq(span, v.replay.tensors[0] != '\0');
            if (span) {
                cr_expect(strstr(v.next, v.replay.tensors), "%s", v.next);
                snprintf(globs, sizeof globs, "%s", v.replay.tensors);
            } else {
                cr_expect_str_eq(v.divergence.node, at[f], "%s with %s", faults[f], globs);
                cr_expect(v.explained && v.explanation.named, "%s: %s", faults[f], v.explanation.reason);
            }
            fd_verdict_free(&v);
        }
        cr_expect(n > 1 && n <= 4, "%s took %d recordings", faults[f], n);
        fd_graph_free(graph);
        fd_fault_owner_free(owner);
    }
    fd_trace_close(ref);
    close_model(&b);
}

Test(replay, a_nan_from_finite_inputs_is_introduced_where_it_first_stands) {
    bench b = open_model(models[0]);
    fd_trace *ref = record(b.graph, (recording){0});
    fd_graph *graph = spoiled(&b, "blk.1.ffn_norm", one_nan_later);
    fd_verdict v = judge(b.graph, ref, record(graph, (recording){.emulated = "f16"}), NULL);
    expect_at(&v, "blk.1.ffn_norm", "NaN");
    cr_expect_eq(v.divergence.pos, 4);
    cr_expect_eq(v.divergence.diff.first.index, 17);
    cr_expect_eq(v.replay.n_nan_new, 1);
    cr_expect_eq(v.replay.n_introduced, 1, "what follows from a NaN is inherited");
    fd_verdict_free(&v);
    fd_graph_free(graph);
    fd_trace_close(ref);
    close_model(&b);
}

Test(replay, a_wrong_reference_is_told_from_a_wrong_candidate) {
    bench b = open_model(models[1]);
    fd_graph *graph = spoiled(&b, "blk.2.attn_out", third_head_scaled);
    fd_trace *ref = record(graph, (recording){0});
    fd_verdict v = judge(b.graph, ref, record(b.graph, (recording){.emulated = "f32"}), NULL);
    expect_at(&v, "blk.2.attn_out", "reference");
    cr_expect(v.replay.of_reference);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    fd_trace_close(ref);
    close_model(&b);
}

/* ---- what is missing ---- */

Test(replay, a_span_of_unrecorded_tensors_is_blamed_and_listed) {
    bench b = open_model(models[0]);
    fd_trace *ref = record(b.graph, (recording){0});
    fd_error err = {0};
    fd_graph *faulty;
    fd_fault_owner *owner;
    must(fd_graph_clone(b.graph, &faulty, &err), &err);
    must(fd_fault_apply("q0_only@1", faulty, &owner, &err), &err);
    recording partly = {.emulated = "f32", .tensors = "*[!s]"}; /* no attn_scores, attn_weights, logits */
    fd_verdict v = judge(b.graph, ref, record(faulty, partly), NULL);
    expect_at(&v, "blk.1.attn_out", "span");
    cr_expect_str_eq(v.replay.span_first, "blk.1.attn_scores");
    cr_expect_str_eq(v.replay.missing, "blk.1.attn_scores, blk.1.attn_weights");
    fd_verdict_free(&v);
    expect_noise(judge(b.graph, ref, record(b.graph, partly), NULL), models[0], "with spans");
    fd_graph_free(faulty);
    fd_fault_owner_free(owner);
    fd_trace_close(ref);
    close_model(&b);
}

Test(replay, caches_are_rebuilt_where_their_rows_were_not_recorded) {
    static const char *const classes[] = {"f32", "f16kv", "q8", "hf-bf16"};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        fd_trace *ref = record(b.graph, (recording){0});
        for (size_t c = 0; c < sizeof classes / sizeof *classes; c++) {
            recording without = {.emulated = classes[c], .tensors = "*[!kv]"}; /* nor attn_k and attn_v */
            expect_noise(judge(b.graph, ref, record(b.graph, without), NULL), models[m], classes[c]);
        }
        fd_trace_close(ref);
        close_model(&b);
    }
}

Test(replay, one_position_cannot_tell) {
    bench b = open_model(models[0]);
    fd_trace *ref = record(b.graph, (recording){.n_prompt = 1});
    fd_verdict v = judge(b.graph, ref, record(b.graph, (recording){.emulated = "f32", .n_prompt = 1}), NULL);
    cr_expect_eq(v.status, FD_INCOMPLETE);
    cr_expect(strstr(v.reasons[0], "cannot tell"), "%s", v.reasons[0]);
    fd_verdict_free(&v);
    fd_trace_close(ref);
    close_model(&b);
}

Test(replay, without_elements_the_verdict_stays_and_says_why) {
    bench b = open_model(models[0]);
    fd_graph *graph = spoiled(&b, "blk.2.attn_out", third_head_scaled);
    fd_trace *ref = record(b.graph, (recording){.fingerprints_only = true});
    fd_verdict v = judge(b.graph, ref, record(graph, (recording){.fingerprints_only = true}), NULL);
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect_str_eq(v.divergence.node, "blk.2.attn_out");
    cr_expect(!v.replay.done);
    bool said = false;
    for (int32_t i = 0; i < v.n_note; i++) said |= strstr(v.notes[i], "--level full") != NULL;
    cr_expect(said, "%d notes", v.n_note);
    fd_verdict_free(&v);
    fd_graph_free(graph);
    fd_trace_close(ref);
    close_model(&b);
}

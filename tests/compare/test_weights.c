/* A loader's bug is a wrong weight, not a wrong op: it is found in the hashes before any op is judged, named by its
 * bytes, and the ops are then judged with the weights that the run had. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/weights/weights.h"
#include "model/gguf/quant.h"
#include "tests/compare/replay_bench.h"
#include "tests/faults/dressed.h"
#include "tests/compare/said.h"

static fd_trace *record_weights(const fd_graph *graph, const fd_graph *model) {
    return record(graph, (recording){.weights = model, .n_prompt = 2});
}

static bool of_weights(const fd_fault_info *fault) {
    return strcmp(fault->family, "loader") == 0 || strcmp(fault->family, "dequantise") == 0;
}

/* The verdict of weights alone; judging every op as well takes five times as long. */
static fd_verdict weights_alone(const fd_graph *graph, const fd_trace *ref, fd_trace *cand) {
    fd_verdict v = {0};
    fd_loaded_weights loaded[2];
    fd_error err = {0};
    must(fd_weights_against_model(graph, ref, cand, &v, &loaded[0], &loaded[1], &err), &err);
    v.weights.replayed = loaded[1].graph != NULL;
    fd_verdict_decide(&v);
    for (int side = 0; side < 2; side++) fd_loaded_weights_free(&loaded[side]);
    fd_trace_close(cand);
    return v;
}

/* Sanitizers take ten times as long: there no op is judged, and the graph has a third of its dresses. */
#ifdef FD_SANITIZED
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* Injects every loader and dequantise fault that concerns the model; returns how many. */
static int32_t name_all(bench *b, const fd_graph *graph, const char *model, bool judge_ops) {
    int32_t n = 0;
    fd_trace *ref = record_weights(graph, graph);
    for (int32_t i = 0; i < fd_fault_count(); i++) {
        const fd_fault_info *fault = fd_fault_at(i);
        char spec[96];
        snprintf(spec, sizeof spec, "%s%s", fault->name, fault->outside ? "" : "@1");
        if (!of_weights(fault)) continue;
        const fd_graph *faulty = faulted_copy(b, graph, spec);
        if (faulty) {
            fd_trace *cand = record(faulty, (recording){.weights = graph, .n_prompt = judge_ops ? 2 : 1});
            fd_verdict v = judge_ops ? judge(graph, ref, cand, NULL) : weights_alone(graph, ref, cand);
            const fd_verdict_weights *w = &v.weights;
            bool right = w->named && (strcmp(w->fault, fault->name) == 0 || strstr(w->same_as, fault->name));
            n++;
            cr_expect_eq(v.status, FD_DIVERGED, "%s in %s", spec, model);
            cr_expect(w->n_differ > 0 && right, "%s in %s: %s (%s), %d differ", spec, model,
                      w->named ? w->fault : "not named", w->same_as, w->n_differ);
            cr_expect_eq(w->n_explained, w->n_differ, "%s in %s", spec, model);
            cr_expect(w->replayed && w->n_unjudged == 0);
            cr_expect_str_empty(v.replay.finding, "%s in %s: the op is right by the weight it had, but %s", spec, model,
                                v.divergence.node);
            cr_expect_eq(v.divergence.kind, FD_DIVERGED_WEIGHTS, "%s in %s", spec, model);
            fd_verdict_free(&v);
        }
        forget(b);
    }
    fd_trace_close(ref);
    return n;
}

Test(weights, every_loader_and_dequantise_fault_is_named_by_its_bytes) {
    int32_t n = 0;
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        n += name_all(&b, b.graph, models[m], m == 0 && !SANITIZED);
        for (int d = 0; m == 0 && d < FD_N_DRESS_ALL; d += SANITIZED ? 3 : 1) {
            fd_dressed dressed = fd_dress_up(b.graph, &fd_dresses[d]);
            n += name_all(&b, dressed.graph, fd_dresses[d].name, false);
            fd_undress(&dressed);
        }
        close_model(&b);
    }
    cr_expect_geq(n, 50, "%d faults of weights in five models", n);
}

Test(weights, exchanged_matrices_of_experts_are_named_by_their_bytes) {
    static const int32_t tokens[] = {1, 2};
    bench b = open_arch("qwen3moe-moe");
    recording how = {.weights = b.graph, .n_prompt = 2, .tokens = tokens};
    fd_trace *ref = record(b.graph, how), *cand = record(faulted(&b, "moe_gate_up_swapped@1"), how);
    fd_verdict v = weights_alone(b.graph, ref, cand);
    cr_expect(v.weights.named, "2 weights of %d", v.weights.n_differ);
    cr_expect_str_eq(v.weights.fault, "moe_gate_up_swapped");
    cr_expect_eq(v.weights.n_explained, 2);
    fd_verdict_free(&v);
    fd_trace_close(ref);
    close_model(&b);
}

Test(weights, equal_weights_leave_the_verdict_alone) {
    bench b = open_model(models[0]);
    fd_trace *ref = record_weights(b.graph, b.graph);
    fd_verdict v = judge(b.graph, ref, record_weights(b.graph, b.graph), NULL);
    cr_expect_eq(v.status, FD_IDENTICAL);
    cr_expect(v.weights.compared && v.weights.against_model && v.weights.n_differ == 0);
    cr_expect_gt(v.weights.n_same, 50);
    cr_expect_eq(v.weights.n_unknown, 0);
    fd_verdict_free(&v);
    v = judge(b.graph, ref, record(b.graph, (recording){.n_prompt = 2}), NULL);
    cr_expect_eq(v.status, FD_IDENTICAL, "weights are optional in a trace");
    cr_expect(!v.weights.of_reference && v.weights.n_differ == 0);
    fd_verdict_free(&v);
    fd_trace_close(ref);
    close_model(&b);
}

Test(weights, a_second_bug_in_an_op_is_found_with_the_weights_as_they_were) {
    bench b = open_model(models[0]);
    fd_trace *ref = record(b.graph, (recording){.weights = b.graph});
    const fd_graph *faulty = faulted(&b, "bytes_read_short@2+rope_pairing@3");
    fd_verdict v = judge(b.graph, ref, record(faulty, (recording){.weights = b.graph}), NULL);
    cr_expect_str_eq(v.weights.fault, "bytes_read_short");
    cr_expect_str_eq(v.weights.name, "blk.2.attn_q.weight");
    cr_expect_str_eq(v.weights.node, "blk.2.attn_q");
    cr_expect_eq(v.weights.n_trailing_zero_row, 135);
    cr_expect_eq(v.weights.expected_trailing_zero_row, 0);
    cr_expect_str_eq(v.divergence.node, "blk.3.attn_q_rope", "attn_q of layer 2 did right by what was loaded");
    cr_expect(v.diagnosis.done && v.diagnosis.explanation.named);
    cr_expect_str_eq(v.diagnosis.explanation.remaining[0].name, "rope_pairing");
    fd_verdict_free(&v);
    fd_trace_close(ref);
    close_model(&b);
}

Test(weights, beside_rounding_too) {
    bench b = open_model(models[0]);
    fd_trace *ref = record_weights(b.graph, b.graph);
    const fd_graph *faulty = faulted(&b, "bytes_read_short@4");
    recording how = {.weights = b.graph, .emulated = "f16", .n_prompt = 2};
    fd_verdict v = judge(b.graph, ref, record(faulty, how), NULL);
    cr_expect_str_eq(v.weights.fault, "bytes_read_short");
    cr_expect_str_empty(v.replay.finding);
    fd_verdict_free(&v);
    fd_trace_close(ref);
    close_model(&b);
}

Test(weights, of_the_reference_are_said_to_be_its_own) {
    bench b = open_model(models[0]);
    const fd_graph *faulty = faulted(&b, "gate_up_swapped@0");
    fd_trace *ref = record_weights(faulty, b.graph);
    fd_verdict v = judge(b.graph, ref, record_weights(b.graph, b.graph), NULL);
    cr_expect_eq(v.status, FD_DIVERGED);
    cr_expect(v.weights.of_reference);
    cr_expect_str_eq(v.weights.fault, "gate_up_swapped");
    cr_expect_str_eq(match_of(&v), "all 768 rows are those of blk.0.ffn_up.weight");
    cr_expect_str_empty(v.replay.finding);
    fd_verdict_free(&v);
    fd_trace_close(ref);
    close_model(&b);
}

/* ---- weights that no fault of the table gives ---- */

typedef void (*edit_fn)(float *values, const fd_weight *w);

static void scale_row_5(float *values, const fd_weight *w) {
    for (int64_t i = 0; i < w->n_col; i++) values[5 * w->n_col + i] *= 1.5f;
}

static void reverse_rows(float *values, const fd_weight *w) {
    for (int64_t r = 0; r < w->n_row / 2; r++)
        for (int64_t i = 0; i < w->n_col; i++) {
            float *a = values + r * w->n_col + i, *b = values + (w->n_row - 1 - r) * w->n_col + i, kept = *a;
            *a = *b;
            *b = kept;
        }
}

static void one_row_late(float *values, const fd_weight *w) {
    memmove(values + w->n_col, values, sizeof *values * (size_t)((w->n_row - 1) * w->n_col));
}

/* The graph with weight 0 of `node`, and of every other reader of it, edited as binary32. */
static fd_graph *edited(const fd_graph *graph, const char *node, edit_fn edit, float **values) {
    fd_error err = {0};
    fd_graph *out;
    must(fd_graph_clone(graph, &out, &err), &err);
    fd_weight *w = &out->weights[out->nodes[fd_graph_find(out, node)].weight[0]];
    *values = malloc(sizeof **values * (size_t)(w->n_row * w->n_col));
    cr_assert(*values);
    for (int64_t r = 0; r < w->n_row; r++)
        fd_dequantize_row(w->dtype, (const char *)w->data + r * fd_dtype_row_bytes(w->dtype, w->n_col),
                          *values + r * w->n_col, w->n_col);
    edit(*values, w);
    w->dtype = FD_F32;
    w->data = *values;
    w->bytes = sizeof **values * (uint64_t)(w->n_row * w->n_col);
    return out;
}

Test(weights, of_no_known_bug_are_not_named_and_their_op_is_not_blamed) {
    static const struct {
        edit_fn edit;
        int64_t first_row, n_row;
        const char *match;
    } cases[] = {{scale_row_5, 5, 1, ""},
                 {reverse_rows, 0, 256, "256 rows are its own in another order"},
                 {one_row_late, 1, 255, "255 rows are its own, 1 row late"}};
    bench b = open_model(models[0]);
    fd_trace *ref = record_weights(b.graph, b.graph);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float *values;
        fd_graph *graph = edited(b.graph, "blk.2.attn_q", cases[i].edit, &values);
        fd_verdict v = judge(b.graph, ref, record_weights(graph, b.graph), NULL);
        cr_expect_eq(v.status, FD_DIVERGED);
        cr_expect_eq(v.weights.n_differ, 1);
        cr_expect(!v.weights.named && weights_unnamed_of(&v)[0]);
        cr_expect_eq(v.weights.first_row, cases[i].first_row, "case %zu: %ld", i, (long)v.weights.first_row);
        cr_expect_eq(v.weights.n_row_differ, cases[i].n_row, "case %zu: %ld", i, (long)v.weights.n_row_differ);
        cr_expect_str_eq(match_of(&v), cases[i].match);
        cr_expect_str_eq(v.weights.dtype, "F32");
        cr_expect_eq(v.weights.n_unjudged, 1);
        cr_expect_str_empty(v.replay.finding, "blamed %s", v.divergence.node);
        fd_verdict_free(&v);
        fd_graph_free(graph);
        free(values);
    }
    fd_trace_close(ref);
    close_model(&b);
}

static void read_half(float *values, const fd_weight *w) {
    int64_t kept = w->n_row * w->n_col / 2 / (int64_t)sizeof(float); /* numel / 2 bytes of an F32 table */
    memset(values + kept, 0, sizeof *values * (size_t)(w->n_row * w->n_col - kept));
}

static void none(float *values, const fd_weight *w) {
    (void)values, (void)w;
}

Test(weights, a_table_that_another_op_reads_is_named_as_well) {
    bench b = open_model(models[0]);
    float *whole, *half;
    fd_graph *model = edited(b.graph, "token_embd", none, &whole);
    fd_graph *graph = edited(b.graph, "token_embd", read_half, &half);
    fd_trace *ref = record_weights(model, model);
    fd_verdict v = judge(model, ref, record_weights(graph, model), NULL);
    cr_expect_str_eq(v.weights.name, "token_embd.weight");
    cr_expect_str_eq(v.weights.node, "token_embd");
    cr_expect_str_eq(v.weights.fault, "bytes_read_short");
    cr_expect_str_empty(v.replay.finding);
    fd_verdict_free(&v);
    fd_trace_close(ref);
    fd_graph_free(graph);
    fd_graph_free(model);
    free(half);
    free(whole);
    close_model(&b);
}

/* Keys that a mask hides: an engine that never computes their scores leaves there what its buffer held, which is no row of the cache. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

/* How many of the newest keys a row sees; 0: those up to the first of its step. */
static int64_t window;

static bool is_hidden(const fd_op_args *a, int64_t row, int64_t key) {
    return window ? key <= a->pos0 + row - window : key > a->pos0;
}

static void old_scores(const fd_op_args *a) {
    run_clean(a);
    for (int64_t i = 0; i < (int64_t)a->n_pos * a->node->shape[0] * a->n_kv; i++) {
        const int64_t key = i % a->n_kv, row = i / a->n_kv / a->node->shape[0];
        if (key <= a->pos0 + row && is_hidden(a, row, key)) ((float *)a->out)[i] = 0.01f * (float)(i * 37 % 101);
    }
}

static void hidden_weights(const fd_op_args *a) {
    run_clean(a);
    for (int64_t at = 0; at < (int64_t)a->n_pos * a->node->shape[0] * a->n_kv; at += a->n_kv) {
        float *w = (float *)a->out + at;
        const int64_t row = at / a->n_kv / a->node->shape[0];
        double sum = 0;
        for (int64_t key = 0; key < a->n_kv; key++) sum += is_hidden(a, row, key) ? 0 : (double)w[key];
        for (int64_t key = 0; key < a->n_kv; key++) w[key] = is_hidden(a, row, key) ? 0 : (float)((double)w[key] / sum);
    }
}

static void expect_hidden(const bench *b, const char *name) {
    fd_graph *graph = graph_copy(b);
    for (int32_t i = 0; i < graph->n_node; i++) {
        if (graph->nodes[i].op == FD_OP_ATTN_SCORES) graph->nodes[i].override = old_scores;
        if (graph->nodes[i].op == FD_OP_ATTN_SOFTMAX) graph->nodes[i].override = hidden_weights;
    }
    fd_verdict v = judged(b, graph, (recording){.emulated = "f32"});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect_str_eq(v.divergence.node, "blk.0.attn_scores");
    cr_expect(e->named, "%s", name);
    cr_expect_str_eq(e->remaining[0].name, name, "%s", e->remaining[0].summary);
    cr_expect_eq(v.diagnosis.causes.n_also, 0, "%s: weights that follow from the keys seen are no second bug, %s at %s",
                 name, v.diagnosis.causes.also[0].name, v.diagnosis.causes.also[0].node);
    fd_verdict_free(&v);
    fd_graph_free(graph);
}

Test(hidden_keys, old_scores_with_weights_of_zero_are_a_mask) {
    bench b = open_bench(models[0], (recording){0});
    window = 3;
    expect_hidden(&b, "other_window");
    window = 0;
    expect_hidden(&b, "keys_hidden");
    close_model(&b);
}

/* Nobody makes a mask: a layer with a window has none either. */
Test(hidden_keys, without_any_mask_there_is_no_window_and_that_is_one_bug) {
    const char *const recorded[] = {all, fused, layers};
    bench b = open_model(models[0]);
    for (int32_t i = 0; i < b.graph->n_node; i++)
        if (b.graph->nodes[i].op == FD_OP_ATTN_SCORES && b.graph->nodes[i].layer % 2 == 0) b.graph->nodes[i].window = 3;
    b.ref = record(b.graph, (recording){0});
    for (int i = 0; i < 3; i++) {
        fd_graph *faulty = faulted(&b, "window_ignored+mask_missing");
        fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .tensors = recorded[i]});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_str_eq(e->named ? e->remaining[0].name : unnamed_of(e), "mask_missing", "%s", recorded[i]);
        cr_expect_eq(v.diagnosis.causes.n_also, 0, "%s: %s at %s", recorded[i], v.diagnosis.causes.also[0].name,
                     v.diagnosis.causes.also[0].node);
        fd_verdict_free(&v);
        forget(&b);
    }
    close_model(&b);
}

/* JAX' engines write a number of their own into every score that the mask hides. */
static float mask_value;
static void masked_by_a_number(const fd_op_args *a) {
    run_clean(a);
    for (int64_t i = 0; i < (int64_t)a->n_pos * a->node->shape[0] * a->n_kv; i++)
        if (((float *)a->out)[i] == -INFINITY) ((float *)a->out)[i] = mask_value;
}

Test(hidden_keys, a_window_may_be_written_as_any_number_that_leaves_no_weight) {
    static const float sound[] = {-1e30f, -2.3819763e38f, -65504.0f};
    bench b = open_model(models[0]);
    for (int32_t i = 0; i < b.graph->n_node; i++)
        if (b.graph->nodes[i].op == FD_OP_ATTN_SCORES && b.graph->nodes[i].layer % 2 == 0) b.graph->nodes[i].window = 3;
    b.ref = record(b.graph, (recording){0});
    for (size_t k = 0; k < sizeof sound / sizeof *sound; k++) {
        fd_graph *graph = graph_copy(&b);
        for (int32_t i = 0; i < graph->n_node; i++)
            if (graph->nodes[i].op == FD_OP_ATTN_SCORES) graph->nodes[i].override = masked_by_a_number;
        mask_value = sound[k];
        fd_verdict v = judged(&b, graph, (recording){.emulated = "f32"});
        cr_expect_eq(v.status, FD_NOISE, "%g: %s", (double)mask_value, v.divergence.node);
        fd_verdict_free(&v);
        fd_graph_free(graph);
        forget(&b);
    }
    close_model(&b);
}

/* A cache made once, zeros where nothing was written, and no mask in decode. */
enum { SLOTS = 13 };
static void empty_slots_in_decode(const fd_op_args *a) {
    run_clean(a);
    const float *scores = a->in[0];
    for (int64_t at = 0; at < (int64_t)a->node->shape[0] * a->n_kv && a->n_pos == 1; at += a->n_kv) {
        double sum = 0;
        for (int64_t key = 0; key < SLOTS; key++) sum += key < a->n_kv ? exp((double)scores[at + key]) : 1;
        for (int64_t key = 0; key < a->n_kv; key++)
            ((float *)a->out)[at + key] = (float)(exp((double)scores[at + key]) / sum);
    }
}

Test(hidden_keys, empty_slots_of_a_cache_are_counted) {
    const char *const recorded[] = {all, fused, layers};
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < 3; i++) {
        fd_graph *graph = spoiled_everywhere(&b, "attn_weights", empty_slots_in_decode);
        fd_verdict v = judged(&b, graph, (recording){.emulated = "f32", .tensors = recorded[i]});
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *says = e->named ? e->remaining[0].summary : unnamed_of(e);
        cr_expect(strstr(says, "every slot of a cache of 13 positions"), "%s: %s", recorded[i], says);
        fd_verdict_free(&v);
        fd_graph_free(graph);
        forget(&b);
    }
    close_model(&b);
}

/* The same, and the prompt has no mask either: what keys a step has is what its last row sees. */
static void all_slots(const fd_op_args *a) {
    const float *scores = a->in[0];
    for (int64_t at = 0; at < (int64_t)a->n_pos * a->node->shape[0] * a->n_kv; at += a->n_kv) {
        double sum = SLOTS - a->n_kv;
        for (int64_t key = 0; key < a->n_kv; key++) sum += exp((double)scores[at + key]);
        for (int64_t key = 0; key < a->n_kv; key++)
            ((float *)a->out)[at + key] = (float)(exp((double)scores[at + key]) / sum);
    }
}

Test(hidden_keys, a_whole_cache_without_a_mask_is_named_with_its_length) {
    const char *const recorded[] = {fused, layers};
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < 2; i++) {
        fd_graph *graph = faulted(&b, "mask_missing");
        for (int32_t n = 0; n < graph->n_node; n++)
            if (graph->nodes[n].op == FD_OP_ATTN_SOFTMAX) graph->nodes[n].override = all_slots;
        fd_verdict v = judged(&b, graph, (recording){.emulated = "f32", .tensors = recorded[i]});
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *says = e->named ? e->remaining[0].summary : unnamed_of(e);
        cr_expect(strstr(says, "every slot of a cache of 13 positions, no mask hides"), "%s: %s", recorded[i], says);
        fd_verdict_free(&v);
        forget(&b);
    }
    close_model(&b);
}

/* A token sees the next one: the last of a step an empty slot, where the cache has room behind it, and nothing where it has none. */
Test(hidden_keys, a_mask_one_too_far_is_told_from_one_over_a_cache_with_room) {
    const char *const recorded[] = {all, fused, layers}, *const faults[] = {"mask_one_ahead", "mask_one_ahead_room"};
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < 6; i++) {
        fd_verdict v =
            judged(&b, faulted(&b, faults[i % 2]), (recording){.emulated = "f32", .tensors = recorded[i / 2]});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_str_eq(e->named && e->n_remaining == 1 ? e->remaining[0].name : unnamed_of(e), faults[i % 2], "%s",
                         recorded[i / 2]);
        fd_verdict_free(&v);
        forget(&b);
    }
    close_model(&b);
}

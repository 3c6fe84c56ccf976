/* What looks like a bug and is none: projects have taken true weights for corruption and lost weeks to it. And a node
 * that makes an inherited error grow is not the one that made it. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "faults/faults.h"
#include "model/gguf/quant.h"
#include "reference_cpu/reference.h"
#include "tests/compare/replay_bench.h"
#include "tests/compare/said.h"

/* ---- models with odd weights ---- */

enum { MOST_OWN = 4 };

typedef struct odd_model {
    fd_graph *graph;
    float *own[MOST_OWN]; /* weights of its own */
    int32_t n_own;
} odd_model;

/* Gives the weight of a node to the model as binary32, `more` rows of zeros behind it. */
static float *take_weight(odd_model *m, const char *node, int slot, int64_t more) {
    fd_graph *graph = m->graph;
    int32_t id = fd_graph_find(graph, node);
    cr_assert(id >= 0 && graph->nodes[id].weight[slot] >= 0 && m->n_own < MOST_OWN, "%s", node);
    fd_weight w = graph->weights[graph->nodes[id].weight[slot]];
    float *values = calloc((size_t)((w.n_row + more) * w.n_col), sizeof *values);
    int64_t row_bytes = fd_dtype_row_bytes(w.dtype, w.n_col);
    for (int64_t r = 0; r < w.n_row; r++)
        fd_dequantize_row(w.dtype, (const char *)w.data + r * row_bytes, values + r * w.n_col, w.n_col);
    w.dtype = FD_F32;
    w.n_row += more;
    w.data = values;
    w.bytes = (uint64_t)(w.n_row * w.n_col) * sizeof *values;
    graph->weights = realloc(graph->weights, sizeof *graph->weights * (size_t)(graph->n_weight + 1));
    graph->weights[graph->n_weight] = w;
    graph->nodes[id].weight[slot] = graph->n_weight++;
    m->own[m->n_own++] = values;
    return values;
}

static odd_model open_odd(const bench *b) {
    odd_model m = {0};
    fd_error err = {0};
    must(fd_graph_clone(b->graph, &m.graph, &err), &err);
    return m;
}

static void close_odd(odd_model *m) {
    fd_graph_free(m->graph);
    for (int32_t i = 0; i < m->n_own; i++) free(m->own[i]);
}

static void bias_of_minus_34(odd_model *m) {
    float *bias = take_weight(m, "blk.1.attn_k", 1, 0);
    for (int i = 0; i < 8; i++) bias[i * 7] = -34.0f;
}
static void large_q(odd_model *m) {
    float *bias = take_weight(m, "blk.2.attn_q", 1, 0);
    for (int i = 0; i < 32; i++) bias[i] = i % 2 ? 60.0f : -60.0f;
}
static void norm_weight_of_16(odd_model *m) {
    float *w = take_weight(m, "blk.1.ffn_norm", 0, 0);
    w[3] = w[100] = 16.0f;
}
static void spike_in_the_stream(odd_model *m) {
    float *table = take_weight(m, "token_embd", 0, 0);
    for (int64_t t = 0; t < m->graph->hparams.n_vocab; t++) table[t * m->graph->hparams.n_embd + 17] = 2000.0f;
}
static void padded_vocabulary(odd_model *m) {
    enum { PADDING = 96 };
    take_weight(m, "token_embd", 0, PADDING);
    take_weight(m, "logits", 0, PADDING);
    m->graph->nodes[fd_graph_find(m->graph, "logits")].shape[0] += PADDING;
    m->graph->hparams.n_vocab += PADDING;
}
static void as_it_is(odd_model *m) {
    (void)m;
}

static const struct {
    const char *name;
    void (*make)(odd_model *m);
} odd[] = {{"a bias of -34", bias_of_minus_34},        {"|Q| = 60", large_q},
           {"a norm weight of 16", norm_weight_of_16}, {"a residual spike of 2000", spike_in_the_stream},
           {"a padded vocabulary", padded_vocabulary}, {"nothing odd", as_it_is}};

/* q8 and llama-cpu round activations to int8 as llama.cpp does, f16kv keeps K and V in binary16. */
static const char *const classes[] = {"f32", "tf32", "f16", "bf16", "q8", "llama-cpu", "f16kv"};

Test(no_bug, odd_weights_and_usual_roundings_are_noise) {
    bench b = open_model("kjv-qwen2");
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        odd_model m = open_odd(&b);
        odd[i].make(&m);
        fd_trace *ref = record(m.graph, (recording){.n_prompt = N_PREFILL});
        for (size_t c = 0; c < sizeof classes / sizeof *classes; c++) {
            fd_verdict v =
                judge(m.graph, ref, record(m.graph, (recording){.emulated = classes[c], .n_prompt = N_PREFILL}), NULL);
            cr_expect_eq(v.status, FD_NOISE, "%s, %s: %s at %s, z %.3g", odd[i].name, classes[c],
                         fd_verdict_status_name(v.status), v.divergence.node, v.replay.z);
            cr_expect(!v.diagnosis.done);
            fd_verdict_free(&v);
        }
        fd_trace_close(ref);
        close_odd(&m);
    }
    close_model(&b);
}

/* The mutant beside it: in each of these models a bug is still found and named. */
Test(no_bug, odd_weights_hide_no_bug) {
    bench b = open_model("kjv-qwen2");
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        odd_model m = open_odd(&b);
        odd[i].make(&m);
        fd_error err = {0};
        fd_graph *faulty;
        fd_fault_owner *owner;
        must(fd_graph_clone(m.graph, &faulty, &err), &err);
        must(fd_fault_apply("rope_pairing@2", faulty, &owner, &err), &err);
        fd_trace *ref = record(m.graph, (recording){.n_prompt = N_PREFILL});
        fd_verdict v = judge(m.graph, ref, record(faulty, (recording){.emulated = "f16", .n_prompt = N_PREFILL}), NULL);
        cr_expect_str_eq(v.divergence.node, "blk.2.attn_q_rope", "%s", odd[i].name);
        cr_expect(v.diagnosis.explanation.named &&
                      strcmp(v.diagnosis.explanation.remaining[0].name, "rope_pairing") == 0,
                  "%s: %s", odd[i].name, unnamed_of(&v.diagnosis.explanation));
        fd_verdict_free(&v);
        fd_trace_close(ref);
        fd_graph_free(faulty);
        fd_fault_owner_free(owner);
        close_odd(&m);
    }
    close_model(&b);
}

static fd_override_fn turned;
static void turned_in_decode(const fd_op_args *args) {
    args->pos0 < N_PREFILL ? run_clean(args) : turned(args);
}

Test(no_bug, rope_turned_equally_in_decode_alone_is_not_said_to_do_no_harm) {
    bench b = open_bench("kjv-llama", (recording){0});
    fd_error err = {0};
    fd_graph *shifted;
    fd_fault_owner *owner;
    must(fd_graph_clone(b.graph, &shifted, &err), &err);
    must(fd_fault_apply("rope_both_one_further", shifted, &owner, &err), &err);
    for (int32_t i = 0; i < shifted->n_node; i++) {
        if (!shifted->nodes[i].override) continue;
        turned = shifted->nodes[i].override;
        shifted->nodes[i].override = turned_in_decode;
    }
    fd_verdict v = judged(&b, shifted, (recording){.emulated = "f32"});
    const fd_explanation *x = &v.diagnosis.explanation;
    cr_expect(x->named && strstr(x->remaining[0].summary, "position + 1, but not before position 6"), "%s",
              x->named ? x->remaining[0].summary : unnamed_of(x));
    fd_verdict_free(&v);
    fd_graph_free(shifted);
    fd_fault_owner_free(owner);
    close_model(&b);
}

Test(no_bug, rope_turned_equally_on_q_and_k_is_said_to_do_no_harm) {
    bench b = open_model("kjv-llama");
    fd_error err = {0};
    fd_graph *shifted;
    fd_fault_owner *owner;
    must(fd_graph_clone(b.graph, &shifted, &err), &err);
    must(fd_fault_apply("rope_both_one_further", shifted, &owner, &err), &err);
    fd_trace *ref = record(b.graph, (recording){.n_prompt = N_PREFILL});
    for (int c = 0; c < 2; c++) {
        const char *class_ = c ? "f16" : NULL;
        fd_verdict v =
            judge(b.graph, ref, record(shifted, (recording){.emulated = class_, .n_prompt = N_PREFILL}), NULL);
        const fd_explanation *x = &v.diagnosis.explanation;
        cr_expect(x->named && x->n_remaining == 1, "%s", unnamed_of(x));
        cr_expect(x->named && strstr(x->remaining[0].summary, "no harm where"), "%s",
                  x->named ? x->remaining[0].name : "");
        cr_expect_eq(v.diagnosis.causes.n_also, 0, "nothing else is wrong");
        fd_verdict_free(&v);
    }
    fd_trace_close(ref);
    fd_graph_free(shifted);
    fd_fault_owner_free(owner);
    close_model(&b);
}

/* ---- amplifiers ---- */

static void every_second_a_thousandth_more(const fd_op_args *args) {
    fd_node node = *args->node;
    fd_op_args clean = *args;
    node.override = NULL;
    clean.node = &node;
    fd_reference_op(FD_NUMERICS_EXACT, &clean);
    for (int64_t i = 0; i < (int64_t)args->n_pos * args->node->shape[0]; i += 2) ((float *)args->out)[i] *= 1.001f;
}

/* Leaves a thousandth of attn_q in layer 0: every position holds the same token there, so the bias can take off the
 * rest. */
static void cancel(odd_model *m, const fd_trace *ref) {
    const fd_node *q = &m->graph->nodes[fd_graph_find(m->graph, "blk.0.attn_q")];
    int64_t n = (int64_t)q->shape[0] * (q->n_dim == 2 ? q->shape[1] : 1);
    double *row = malloc(sizeof *row * (size_t)n);
    fd_error err = {0};
    must(fd_trace_read(ref, fd_trace_find(ref, q->name), 1, NULL, row, &err), &err);
    float *bias = take_weight(m, "blk.0.attn_q", 1, 0);
    for (int64_t i = 0; i < n; i++) bias[i] -= 0.999f * (float)row[i];
    free(row);
}

static fd_finding finding_at_q(const odd_model *m, recording how, fd_attribution *j) {
    fd_error err = {0};
    fd_graph *faulty;
    must(fd_graph_clone(m->graph, &faulty, &err), &err);
    faulty->nodes[fd_graph_find(faulty, "blk.0.attn_norm")].override = every_second_a_thousandth_more;
    recording exact = how;
    exact.emulated = NULL;
    fd_trace *ref = record(m->graph, exact), *cand = record(faulty, how);
    fd_attribution_options options = {.graph = m->graph,
                                      .ref = ref,
                                      .cand = cand,
                                      .n_pos = N_PREFILL,
                                      .op = fd_reference_op,
                                      .numerics = fd_numerics_class_find(how.emulated)};
    must(fd_attribute_errors(&options, j, &err), &err);
    fd_trace_close(ref);
    fd_trace_close(cand);
    fd_graph_free(faulty);
    return (fd_finding)j->finding[fd_graph_find(m->graph, "blk.0.attn_q")];
}

Test(no_bug, what_makes_an_error_grow_is_called_an_amplifier_and_not_blamed) {
    static const int32_t same[N_PREFILL + N_DECODE] = {300, 300, 300, 300, 300, 300, 300, 300};
    recording how = {.emulated = "f32", .n_prompt = N_PREFILL, .tokens = same}, exact = how;
    exact.emulated = NULL;
    bench b = open_model("kjv-qwen2");
    fd_trace *plain = record(b.graph, exact);
    for (int amplifies = 0; amplifies < 2; amplifies++) {
        odd_model m = open_odd(&b);
        fd_attribution j;
        if (amplifies) cancel(&m, plain);
        fd_finding finding = finding_at_q(&m, how, &j);
        cr_expect_eq(finding, amplifies ? FD_FOUND_AMPLIFIER : FD_FOUND_INHERITED, "%s", fd_finding_name(finding));
        cr_expect(j.found && j.first.node == fd_graph_find(m.graph, "blk.0.attn_norm"));
        cr_expect_eq(j.n_by_finding[FD_FOUND_INTRODUCED] + j.n_by_finding[FD_FOUND_BOTH], 1);
        cr_expect_eq(j.n_by_finding[FD_FOUND_AMPLIFIER], amplifies);
        fd_attribution_free(&j);
        close_odd(&m);
    }
    fd_trace_close(plain);
    close_model(&b);
}

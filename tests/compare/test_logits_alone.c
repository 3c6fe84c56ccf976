/* Bugs of one layer that are named from logits alone. */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/compare/replay_bench.h"

enum { LAYER = 2 };

typedef struct logits_case {
    const char *what;
    int model;
    const char *emulated; /* the class, which is not told */
    const char *node;     /* of that layer, or of none */
    fd_override_fn how;
    const char *name;
    int32_t n_prompt; /* of `tokens`; 0: as recordings are */
} logits_case;

static void with_the_stream_twice(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] += ((const float *)args->in[0])[i];
}

/* Last bits of another kernel, which move values to the other side of steps behind them: no row is repeated. */
static void scaled_twice(const fd_op_args *args) {
    const int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    const float scale = 1 / sqrtf((float)args->graph->nodes[args->node->input[0]].shape[1]);
    run_clean(args);
    for (int64_t i = 0; i < n; i++) ((float *)args->out)[i] *= scale * (1 + 1e-6f * (float)(i * 7 % 11 - 5));
}

/* The same last bits. */
static void times(const fd_op_args *args, float factor) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] *= factor * (1 + 1e-6f * (float)(i * 7 % 11 - 5));
}
static void too_small(const fd_op_args *args) {
    times(args, 0.7f);
}
static void a_little_too_large(const fd_op_args *args) {
    times(args, 1.05f);
}

/* A query sees the last eight positions. */
static void of_eight_keys(const fd_op_args *args) {
    const int64_t n_head = args->node->shape[0], n_kv = args->n_kv;
    run_clean(args);
    for (int64_t item = 0; item < args->n_pos * n_head; item++)
        for (int64_t k = 0; k <= args->pos0 + item / n_head - 8; k++) ((float *)args->out)[item * n_kv + k] = -INFINITY;
}

static const fd_node *input_of(const fd_op_args *args, int slot) {
    return &args->graph->nodes[args->node->input[slot]];
}

/* Query head h reads K's head h modulo as many as there are; V's heads are right. */
static void of_other_keys(const fd_op_args *args) {
    const int32_t n_head = input_of(args, 0)->shape[0], d = input_of(args, 0)->shape[1];
    const int32_t n_head_kv = input_of(args, 1)->shape[0];
    run_clean(args);
    for (int64_t item = 0; item < args->n_pos * n_head; item++)
        for (int64_t t = 0; t <= args->pos0 + item / n_head; t++) {
            const float *q = (const float *)args->in[0] + item * d;
            const float *k = (const float *)args->in[1] + (t * n_head_kv + item % n_head % n_head_kv) * d;
            double dot = 0;
            for (int32_t i = 0; i < d; i++) dot += (double)q[i] * (double)k[i];
            ((float *)args->out)[item * args->n_kv + t] = (float)(dot * (double)args->node->scale);
        }
}

static void log_probabilities(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int32_t p = 0; p < args->n_pos; p++) {
        float *row = (float *)args->out + p * n;
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += exp((double)row[i]);
        for (int64_t i = 0; i < n; i++) row[i] -= (float)log(sum);
    }
}

static const int32_t tokens[16] = {1, 44, 107, 300, 12, 260, 81, 5, 490, 33, 402, 7, 150, 61, 222, 18};

static const logits_case cases[] = {
    {"the table's faults and both sides of an addition are asked in each layer", 0, "f32", "ffn_inp",
     with_the_stream_twice, "input_factor"},
    {"class and bug are found together where no row is repeated", 0, "llama-cpu", "attn_scores", scaled_twice,
     "attn_scale_twice"},
    {"what int8 blocks leave goes along a factor", 0, "llama-cpu", "attn_out", too_small, "factor"},
    {"a class has room for it, and it goes along a factor", 1, "llama-cpu", "attn_out", a_little_too_large, "factor"},
    {"what costs nothing is asked before what uses up the budget", 0, "f32", "logits", log_probabilities,
     "log_softmax"},
    {"a bug of later rows, where the first rows give up most of what is tried", 1, "llama-cpu", "attn_scores",
     of_eight_keys, "other_window", 16},
    {"of a layer's ops that a fault concerns one alone has it", 0, "f32", "attn_scores", of_other_keys, "gqa_modulo"},
};

Test(logits_alone, a_bug_of_one_layer_has_a_name) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b = open_bench(models[cases[i].model],
                             (recording){.n_prompt = cases[i].n_prompt, .tokens = cases[i].n_prompt ? tokens : NULL});
        fd_graph *faulty = graph_copy(&b);
        for (int32_t k = 0; k < faulty->n_node; k++)
            if ((faulty->nodes[k].layer == LAYER || faulty->nodes[k].layer < 0) &&
                strcmp(fd_fault_suffix(&faulty->nodes[k]), cases[i].node) == 0)
                faulty->nodes[k].override = cases[i].how;
        fd_verdict v = judged(&b, faulty,
                              (recording){.emulated = cases[i].emulated,
                                          .numerics = "unknown",
                                          .tensors = "logits",
                                          .n_prompt = cases[i].n_prompt,
                                          .tokens = cases[i].n_prompt ? tokens : NULL});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_eq(v.status, FD_DIVERGED, "%s: %s", cases[i].what, fd_verdict_status_name(v.status));
        cr_expect(e->named, "%s: %s at %s", cases[i].what, e->remaining[0].summary, e->remaining[0].at);
        cr_expect_str_eq(e->remaining[0].name, cases[i].name, "%s: %s", cases[i].what, e->remaining[0].summary);
        const bool says_layer = strstr(e->remaining[0].summary, ", in layer 2") || strstr(e->remaining[0].at, "blk.2.");
        cr_expect(says_layer || strcmp(cases[i].node, "logits") == 0, "%s: %s", cases[i].what, e->remaining[0].summary);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
        close_model(&b);
    }
}

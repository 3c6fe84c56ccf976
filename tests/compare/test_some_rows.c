/* Bugs of some rows of a step alone, and names that the steps after the first refute: asked about by themselves, in every chunk and
 * layer, they are one bug with one name. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

static float *last_row(const fd_op_args *args) {
    return (float *)args->out + (args->n_pos - 1) * fd_node_width(args->node);
}
static void last_is_the_one_before(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    if (args->n_pos > 1) memcpy(last_row(args), last_row(args) - n, sizeof(float) * (size_t)n);
}
static void rows_1_and_2_exchanged(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int64_t i = 0; i < n && args->pos0 == 0 && args->n_pos > 2; i++) {
        float *a = (float *)args->out + n + i, *b = a + n, x = *a;
        *a = *b, *b = x;
    }
}
static void last_reads_the_branch_before(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    const float *stream = (const float *)args->in[0] + (args->n_pos - 1) * n;
    const float *before = (const float *)args->in[1] + (args->n_pos - 2) * n;
    run_clean(args);
    for (int64_t i = 0; i < n && args->n_pos > 1; i++) last_row(args)[i] = stream[i] + before[i];
}
static void last_without_branch(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    if (args->n_pos > 1)
        memcpy(last_row(args), (const float *)args->in[0] + (args->n_pos - 1) * n, sizeof(float) * (size_t)n);
}
static void last_not_computed(const fd_op_args *args) {
    run_clean(args);
    if (args->n_pos > 1) memset(last_row(args), 0, sizeof(float) * (size_t)fd_node_width(args->node));
}
/* Of a cache, whose rows stand from position 0 on. */
static void last_not_written(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    if (args->n_pos > 1) memset((float *)args->out + (args->pos0 + args->n_pos - 1) * n, 0, sizeof(float) * (size_t)n);
}
/* One key more in the first chunk's sum, of a score of 0; after it two. */
static void sums_of_more(const fd_op_args *args) {
    const int64_t n_head = args->node->shape[0], n_kv = args->n_kv;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n_head; i++) {
        const float *s = (const float *)args->in[0] + i * n_kv;
        float *w = (float *)args->out + i * n_kv;
        double largest = -INFINITY, sum = 0;
        for (int64_t k = 0; k <= args->pos0 + i / n_head; k++) largest = fmax(largest, (double)s[k]);
        for (int64_t k = 0; k <= args->pos0 + i / n_head; k++) sum += exp((double)s[k] - largest);
        const double more = (args->pos0 ? 2 : 1) * exp(-largest);
        for (int64_t k = 0; k < n_kv; k++) w[k] = (float)((double)w[k] * sum / (sum + more));
    }
}
/* V in int8, one scale for all that a step writes. */
static void int8_values(const fd_op_args *args) {
    const int64_t n = args->n_pos * fd_node_width(args->node);
    float *v = (float *)args->out + args->pos0 * fd_node_width(args->node), most = 0;
    run_clean(args);
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(v[i]));
    for (int64_t i = 0; i < n; i++) v[i] = rintf(v[i] / (most / 127)) * (most / 127);
}

/* Of decode alone: of the steps before it the rows in the cache are right. */
static void larger_in_decode(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int64_t i = 0; i < n && args->n_pos == 1; i++) ((float *)args->out)[args->pos0 * n + i] *= 1.02f;
}

/* In decode the result of the step before. */
static void one_step_late(const fd_op_args *args) {
    static float kept[4096];
    const size_t size = sizeof(float) * (size_t)fd_node_width(args->node);
    float *own = malloc(size);
    cr_assert(own && size <= sizeof kept);
    run_clean(args);
    memcpy(own, last_row(args), size);
    if (args->n_pos == 1) memcpy(args->out, kept, size);
    memcpy(kept, own, size);
    free(own);
}

static void last_not_seen(const fd_op_args *args) {
    const int64_t n_head = args->node->shape[0], n_kv = args->n_kv;
    run_clean(args);
    for (int64_t head = 0; head < n_head && args->n_pos > 1; head++)
        ((float *)args->out)[((args->n_pos - 1) * n_head + head) * n_kv + args->pos0 + args->n_pos - 1] = -INFINITY;
}

static const struct {
    const char *what, *nodes;
    fd_override_fn how;
    const char *tensors, *emulated, *name, *not ; /* name "": none */
} bugs[] = {
    {"the last row of a chunk is the one before", "logits", last_is_the_one_before, "*", "f32", "other_rows", ""},
    {"the last row of a chunk adds the branch before", ".l_out", last_reads_the_branch_before, "*", "f32",
     "earlier_input", ""},
    {"the last row of a chunk lacks its branch", "blk.2.ffn_inp", last_without_branch, "*l_out,logits", "f32",
     "branch_missing", ""},
    {"the last row of a chunk was not computed", ".attn_out", last_not_computed, "", "f32", "zeros", ""},
    {"the last row of a chunk was not written", ".cache_v", last_not_written, "*", "f32", "zeros", ""},
    {"softmax's sum has more in later steps", ".attn_weights", sums_of_more, "", "f32", "row_factor", ""},
    {"two rows of a step stand in each other's place", "blk.2.ffn_down", rows_1_and_2_exchanged, "*", "f32",
     "other_rows", ""},
    {"two rows of 16 bits", "blk.1.attn_proj", rows_1_and_2_exchanged, "*", "hf-bf16", "other_rows", ""},
    {"decode gives the result of the step before", "logits", one_step_late, "*", "f32", "other_rows", ""},
    {"the last row of a chunk does not see itself", ".attn_scores", last_not_seen, "", "f32", "keys_hidden", ""},
    {"the last row of a chunk does not see itself, as recorded", ".attn_scores", last_not_seen, "*", "f32",
     "keys_hidden", ""},
    {"V is larger in decode", ".cache_v", larger_in_decode, "", "f32", "factor", ""},
    {"V is larger in decode, as recorded", ".cache_v", larger_in_decode, "*", "f32", "factor", ""},
    {"V in int8 is no other rows", ".cache_v", int8_values, "", "hf-f16", "", "cache_rows_stale"},
};

Test(some_rows, are_named_as_what_they_are) {
    bench b = open_bench(models[0], (recording){.first_chunk = 3});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        fd_graph *graph;
        fd_error err = {0};
        must(fd_graph_clone(b.graph, &graph, &err), &err);
        for (int32_t k = 0; k < graph->n_node; k++)
            if (fd_ends_with(graph->nodes[k].name, bugs[i].nodes)) graph->nodes[k].override = bugs[i].how;
        fd_verdict v = judged(&b, graph,
                              (recording){.emulated = bugs[i].emulated,
                                          .tensors = bugs[i].tensors[0] ? bugs[i].tensors : fused,
                                          .first_chunk = 3});
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *name = e->named ? e->remaining[0].name : "";
        cr_expect(!bugs[i].name[0] || strcmp(name, bugs[i].name) == 0, "%s: %s at %s", bugs[i].what,
                  e->named ? e->remaining[0].summary : unnamed_of(e), v.divergence.node);
        cr_expect(!bugs[i].not [0] || strcmp(name, bugs[i].not ) != 0, "%s: %s", bugs[i].what, name);
        cr_expect(!bugs[i].name[0] || v.diagnosis.causes.n_also == 0, "%s: %d more bugs, %s at %s", bugs[i].what,
                  v.diagnosis.causes.n_also, v.diagnosis.causes.also[0].name, v.diagnosis.causes.also[0].node);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

/* All heads of K, or all but the first. */
static void not_normed(const fd_op_args *args) {
    memcpy(args->out, args->in[0], sizeof(float) * (size_t)(args->n_pos * fd_node_width(args->node)));
}
static void first_head_normed(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node), dim = args->node->shape[1];
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * width; i++)
        if (i % width >= dim) ((float *)args->out)[i] = ((const float *)args->in[0])[i];
}

/* K's heads are not normed: that alone, and no order of norm and RoPE, which is a bug of both. */
Test(some_rows, half_of_a_bug_of_two_ops_is_not_that_bug) {
    static const int32_t small[N_PREFILL + N_DECODE] = {1, 30, 45, 103, 26, 7, 51, 88}; /* of a vocabulary of 128 */
    static const struct {
        fd_override_fn how;
        const char *says;
    } bugs[] = {{not_normed, "are not normed"}, {first_head_normed, "are not normed (heads 2, 3 alone)"}};
    bench b = open_arch("qwen3-dense");
    b.ref = record(b.graph, (recording){.tokens = small});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        fd_verdict v = judged(&b, spoiled(&b, "blk.1.attn_k_norm", bugs[i].how),
                              (recording){.emulated = "f32",
                                          .tensors = "token_embd,*attn_norm,*attn_[qkv],*attn_out,*proj,*inp,*ffn_norm,"
                                                     "*l_out,logits",
                                          .tokens = small});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect(e->named && strcmp(e->remaining[0].name, "qk_norm_missing") == 0 &&
                      strstr(e->remaining[0].summary, bugs[i].says),
                  "%s", e->named ? e->remaining[0].summary : unnamed_of(e));
        for (int32_t k = 0; k < e->n_remaining && k < FD_MAX_REMAINING; k++)
            cr_expect_str_neq(e->remaining[k].name, "rope_before_norm");
        fd_verdict_free(&v);
        forget(&b);
    }
    close_model(&b);
}

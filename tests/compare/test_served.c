/* What serving adds to attention: keys that are none of the sequence's, caches that are rounded once their step is over, positions that begin
 * again, bugs of decode in engines of 16 bits. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/hypothesis/hypothesis.h"
#include "compare/hypothesis/round_type.h"
#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

/* ---- keys besides the sequence's own ---- */

enum { N_FIRST = 12, N_ALL = 16, MOST_BESIDES = 2 };
static const int32_t many[N_ALL] = {1, 30, 45, 103, 26, 7, 51, 88, 9, 64, 77, 18, 300, 261, 91, 40};

/* The part of a row's attention that key `key` of another sequence takes. */
static float part_of(int64_t row, int64_t head, int key) {
    return 0.1f + 0.05f * sinf((float)(row * 7 + head * 3 + key * 5));
}
static float own_part(int64_t row, int64_t head, int n) {
    return n == 1 ? 1 - part_of(row, head, 0) : 1 - part_of(row, head, 0) - part_of(row, head, 1);
}
static void less_weight(const fd_op_args *args) {
    const int64_t n_head = args->node->shape[0];
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n_head; i++)
        for (int64_t k = 0; k < args->n_kv; k++)
            ((float *)args->out)[i * args->n_kv + k] *= own_part(args->pos0 + i / n_head, i % n_head, MOST_BESIDES);
}
static void add_values(const fd_op_args *args, int n, bool weighed) {
    const int64_t n_head = args->node->shape[0], dim = args->node->shape[1];
    const int64_t group = n_head / args->graph->nodes[args->node->input[1]].shape[0];
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n_head; i++)
        for (int64_t d = 0; d < dim; d++) {
            const int64_t row = args->pos0 + i / n_head, head = i % n_head;
            float *x = (float *)args->out + i * dim + d;
            if (!weighed) *x *= own_part(row, head, n);
            for (int key = 0; key < n; key++)
                *x += part_of(row, head, key) * sinf((float)(head / group * 31 + d * (3 + 2 * key)));
        }
}
static void values_of_weights(const fd_op_args *args) {
    add_values(args, MOST_BESIDES, true);
}
static void one_value_besides(const fd_op_args *args) {
    add_values(args, 1, false);
}
static void two_values_besides(const fd_op_args *args) {
    add_values(args, 2, false);
}
/* Softmax's sum is larger, and nothing is added: as with a sink. */
static void larger_sum(const fd_op_args *args) {
    less_weight(args);
}
/* One of its own keys counts twice, in each row and head by another number: its own value. */
static void own_key_again(const fd_op_args *args) {
    const int64_t n_head = args->node->shape[0], dim = args->node->shape[1];
    const fd_node *cache = &args->graph->nodes[args->node->input[1]];
    const int64_t group = n_head / cache->shape[0];
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n_head; i++)
        for (int64_t d = 0; d < dim; d++)
            ((float *)args->out)[i * dim + d] += part_of(args->pos0 + i / n_head, i % n_head, 0) *
                                                 ((const float *)args->in[1])[i % n_head / group * dim + d];
}

static const char partial[] = "token_embd,*norm,*attn_[qkv],*rope,*attn_out,*proj,*inp,*down,*l_out,logits";

Test(served, keys_that_no_row_of_the_trace_has_are_named) {
    static const struct {
        fd_override_fn weights, mix;
        const char *tensors, *name, *says;
    } bugs[] = {
        {less_weight, values_of_weights, "*", "keys_outside", "keys that are not in the trace"},
        {larger_sum, NULL, "*", "row_factor", "softmax's sum is another"},
        {larger_sum, values_of_weights, "*attn_weights,*scores,*cache*,*rope,*proj,logits", "row_factor",
         "or keys are seen that are not in the trace"},
        {NULL, one_value_besides, partial, "keys_outside", "of 1 different value:"},
        {NULL, two_values_besides, partial, "keys_outside", "of 2 different values:"},
        {NULL, own_key_again, partial, "", ""},
    };
    recording how = {.tokens = many, .n_prompt = N_ALL, .first_chunk = N_FIRST};
    bench b = open_bench(models[0], how);
    how.emulated = "f32";
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        fd_graph *faulty = graph_copy(&b);
        for (int32_t k = 0; k < faulty->n_node; k++) {
            fd_node *node = &faulty->nodes[k];
            if (node->op == FD_OP_ATTN_SOFTMAX && bugs[i].weights) node->override = bugs[i].weights;
            if (node->op == FD_OP_ATTN_MIX && bugs[i].mix) node->override = bugs[i].mix;
        }
        how.tensors = bugs[i].tensors;
        fd_verdict v = judged(&b, faulty, how);
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *name = e->named ? e->remaining[0].name : "";
        cr_expect_eq(v.status, FD_DIVERGED);
        cr_expect(strcmp(name, bugs[i].name) == 0 && (!e->named || strstr(e->remaining[0].summary, bugs[i].says)),
                  "%zu: %s", i, e->named ? e->remaining[0].summary : unnamed_of(e));
        cr_expect(v.diagnosis.causes.n_also == 0 || i == 2, "%zu: %d more bugs", i, v.diagnosis.causes.n_also);
        fd_verdict_free(&v);
        fd_graph_free(faulty);
    }
    close_model(&b);
}

/* Of K and V all rows before the chunk. */
static void rows_of_another(const fd_op_args *args) {
    const int64_t width = fd_node_width(&args->graph->nodes[args->node->input[1]]);
    float *rows = copy_input(args, 1, args->n_kv * width);
    for (int64_t i = 0; i < args->n_kv * width && args->pos0 >= N_FIRST; i++)
        rows[i] = sinf((float)(i % 97) + (float)(i / 97) * 0.37f);
    run_with(args, 1, rows);
}

Test(served, the_cache_of_another_sequence_is_not_explained_by_some_of_its_values) {
    recording how = {.tokens = many, .n_prompt = N_ALL, .first_chunk = N_FIRST};
    for (int m = 0; m < 2; m++) {
        bench b = open_bench(models[m], how);
        fd_graph *faulty = graph_copy(&b);
        for (int32_t k = 0; k < faulty->n_node; k++)
            if (fd_reads_kv_cache(&faulty->nodes[k])) faulty->nodes[k].override = rows_of_another;
        fd_verdict v = judged(&b, faulty,
                              (recording){.tokens = many,
                                          .n_prompt = N_ALL,
                                          .first_chunk = N_FIRST,
                                          .emulated = "hf-f16",
                                          .tensors = partial,
                                          .store = FD_F16});
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_eq(v.status, FD_DIVERGED, "%s", models[m]);
        cr_expect(!e->named, "%s: %s", models[m], e->named ? e->remaining[0].summary : "");
        fd_verdict_free(&v);
        fd_graph_free(faulty);
        close_model(&b);
    }
}

/* ---- a cache that is rounded once its step is over ---- */

/* Rows of earlier steps in e4m3, its own as they are. */
static void reads_rounded(const fd_op_args *args) {
    const int64_t width = fd_node_width(&args->graph->nodes[args->node->input[1]]);
    float *rows = copy_input(args, 1, args->n_kv * width);
    const int32_t first = args->pos0 - args->batch_offset;
    fd_round_type_rows(FD_ROUND_E4M3, rows, first, width);
    run_with(args, 1, rows);
}

Test(served, a_cache_that_is_rounded_after_its_step_is_no_bug) {
    static const char *const recorded[] = {"*", partial, "*l_out,logits"};
    bench b = open_bench(models[0], (recording){.first_chunk = 3});
    for (int r = 0; r < 3; r++) {
        fd_graph *graph = graph_copy(&b);
        for (int32_t k = 0; k < graph->n_node; k++)
            if (fd_node_is_kv_cache(&graph->nodes[graph->nodes[k].input[1] < 0 ? 0 : graph->nodes[k].input[1]]))
                graph->nodes[k].override = reads_rounded;
        fd_verdict v = judged(
            &b, graph, (recording){.emulated = "f32", .numerics = "unknown", .tensors = recorded[r], .first_chunk = 3});
        cr_expect_eq(v.status, FD_INCOMPLETE, "%s: %s at %s", recorded[r], fd_verdict_status_name(v.status),
                     v.divergence.node);
        fd_verdict_free(&v);
        fd_graph_free(graph);
    }
    close_model(&b);
}

/* ---- decode in 16 bits ---- */

/* In decode another sequence's values. */
static void values_of_another(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->node->shape[0] * args->node->shape[1] && args->n_pos == 1; i++)
        ((float *)args->out)[i] += sinf((float)(i % 89 + args->pos0));
}

Test(served, a_bug_of_decode_is_no_way_to_multiply) {
    static const char fused[] = "token_embd,*norm,*proj,*down,*l_out,logits";
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty = spoiled_everywhere(&b, "attn_out", values_of_another);
    fd_verdict v = judged(
        &b, faulty, (recording){.emulated = "hf-bf16", .numerics = "unknown", .tensors = fused, .store = FD_BF16});
    expect_at(&v, "blk.0.attn_proj", "fused");
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}

/* ---- positions that begin again ---- */

/* Two sequences in a row, and rows of padding, each at position 0, before the last one; rows that RoPE does not turn; padding on the left. */
static const struct {
    int32_t pos[N_ALL];
    const char *name, *says;
} anew[] = {
    {{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 0, 0, 0, 1, 2}, "other_position", "begins again at 5, 11, 12, 13: "},
    {{0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "rope_position_zero", ""},
    {{0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, "other_position", ""},
};
static const int32_t *packed;
static void turned_anew(const fd_op_args *args) {
    const int64_t half = args->node->rope.n_rot / 2, n = (args->pos0 + args->n_pos) * half;
    const float *from[2] = {args->rope_cos, args->rope_sin};
    float *to = malloc(2 * sizeof *to * (size_t)n);
    fd_op_args own = *args;
    cr_assert(to);
    for (int64_t i = 0; i < 2 * n; i++) to[i] = from[i / n][packed[i % n / half] * half + i % half];
    own.rope_cos = to;
    own.rope_sin = to + n;
    run_clean(&own);
    free(to);
}

Test(served, positions_that_begin_again_are_named_with_where_they_do) {
    recording how = {.tokens = many, .n_prompt = N_ALL};
    bench b = open_bench(models[0], how);
    how.emulated = "f32";
    fd_graph *faulty = graph_copy(&b);
    for (int32_t k = 0; k < faulty->n_node; k++)
        if (faulty->nodes[k].op == FD_OP_ROPE) faulty->nodes[k].override = turned_anew;
    for (size_t i = 0; i < sizeof anew / sizeof *anew; i++) {
        packed = anew[i].pos;
        fd_verdict v = judged(&b, faulty, how);
        const fd_explanation *e = &v.diagnosis.explanation;
        cr_expect_str_eq(e->named ? e->remaining[0].name : "", anew[i].name);
        cr_expect(e->named && strstr(e->remaining[0].summary, anew[i].says), "%s",
                  e->named ? e->remaining[0].summary : unnamed_of(e));
        fd_verdict_free(&v);
    }
    fd_graph_free(faulty);
    close_model(&b);
}

/* ALiBi's slopes and sinks, of which every head has its own: times a number, all alike, another head's, through spans too. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "numerics/contract.h"
#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

static const int32_t small[N_PREFILL + N_DECODE] = {1, 30, 45, 103, 26, 7, 51, 88}; /* of a vocabulary of 128 */

static void bias_by(const fd_op_args *args, const float *slopes) {
    const int32_t n_head = args->node->shape[0];
    for (int64_t item = 0; item < (int64_t)args->n_pos * n_head; item++)
        for (int64_t t = 0; t < args->n_kv; t++) {
            const int64_t own = args->pos0 + item / n_head, i = item * args->n_kv + t;
            ((float *)args->out)[i] =
                t > own ? 0 : fmaf(slopes[item % n_head], (float)(t - own), ((const float *)args->in[0])[i]);
        }
}

/* The exponent begins at 0, not at 1. */
static void one_exponent_less(const fd_op_args *args) {
    float slopes[16];
    for (int32_t h = 0; h < args->node->shape[0]; h++)
        slopes[h] = (float)(fd_alibi_slope(args->node->max_bias, args->node->shape[0], h) *
                            exp2(args->node->max_bias / args->node->shape[0]));
    bias_by(args, slopes);
}
static void slopes_reversed(const fd_op_args *args) {
    float slopes[16];
    const int32_t n = args->node->shape[0];
    for (int32_t h = 0; h < n; h++) slopes[h] = (float)fd_alibi_slope(args->node->max_bias, n, n - 1 - h);
    bias_by(args, slopes);
}
static void slopes_of_twice_as_many(const fd_op_args *args) {
    float slopes[16];
    for (int32_t h = 0; h < args->node->shape[0]; h++)
        slopes[h] = (float)fd_alibi_slope(args->node->max_bias, 2 * args->node->shape[0], h);
    bias_by(args, slopes);
}

static void slopes_of_one(const fd_op_args *args) {
    const float slopes[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    bias_by(args, slopes);
}

static void with_sinks(const fd_op_args *args, float (*of)(const float *right, int32_t n, int32_t head)) {
    float right[16], other[16];
    const int32_t n = args->node->shape[0];
    fd_op_args own = *args;
    fd_weight sinks = *args->weight[0];
    cr_assert_eq(sinks.dtype, FD_F32);
    memcpy(right, sinks.data, sizeof *right * (size_t)n);
    for (int32_t h = 0; h < n; h++) other[h] = of(right, n, h);
    sinks.data = other;
    own.weight[0] = &sinks;
    run_clean(&own);
}
static float zero(const float *right, int32_t n, int32_t head) {
    (void)right, (void)n, (void)head;
    return 0;
}
static float next(const float *right, int32_t n, int32_t head) {
    return right[(head + 1) % n];
}
static void sinks_of_zero(const fd_op_args *args) {
    with_sinks(args, zero);
}
static float negative(const float *right, int32_t n, int32_t head) {
    (void)n;
    return -right[head];
}
static void sinks_taken_away(const fd_op_args *args) {
    with_sinks(args, negative);
}
static void sinks_of_the_next_head(const fd_op_args *args) {
    with_sinks(args, next);
}

static const struct {
    const char *arch, *node;
    fd_override_fn override;
    const char *name, *says;
} bugs[] = {
    {"bloom-dense", "blk.1.attn_alibi", one_exponent_less, "other_head_numbers", "every head is 4 times the file's"},
    {"bloom-dense", "blk.1.attn_alibi", slopes_reversed, "other_head_numbers",
     "heads 0, 1, 2, 3 have the slope of ALiBi of heads 3, 2, 1, 0"},
    {"bloom-dense", "blk.1.attn_alibi", slopes_of_twice_as_many, "other_alibi_bias", "largest bias of ALiBi 4"},
    {"bloom-dense", "blk.1.attn_alibi", slopes_of_one, "other_head_numbers", "the slope of ALiBi of every head is 1"},
    {"gpt-oss-moe", "blk.1.attn_weights", sinks_of_zero, "other_head_numbers", "the sink of every head is 0"},
    {"gpt-oss-moe", "blk.1.attn_weights", sinks_taken_away, "other_head_numbers",
     "the sink of every head is -1 times the file's"},
    {"gpt-oss-moe", "blk.1.attn_weights", sinks_of_the_next_head, "other_head_numbers",
     "heads 0, 1, 2, 3 have the sink of heads 1, 2, 3, 0"},
};

Test(head_numbers, other_slopes_and_sinks_are_found_and_said) {
    const char *const recorded[] = {all, fused};
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        bench b = open_arch(bugs[i].arch);
        b.ref = record(b.graph, (recording){.tokens = small});
        for (int r = 0; r < 2; r++) {
            const fd_graph *faulty = spoiled(&b, bugs[i].node, bugs[i].override);
            fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .tensors = recorded[r], .tokens = small});
            const fd_explanation *e = &v.diagnosis.explanation;
            const char *found = e->named ? e->remaining[0].summary : unnamed_of(e);
            cr_expect(e->named && strcmp(e->remaining[0].name, bugs[i].name) == 0, "%s %s: %s", bugs[i].says,
                      recorded[r], found);
            cr_expect(strstr(found, bugs[i].says), "%s %s: %s", bugs[i].says, recorded[r], found);
            fd_verdict_free(&v);
            forget(&b);
        }
        close_model(&b);
    }
}

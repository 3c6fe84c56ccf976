/* Bugs of attention's softmax, in binary32. */
#include <math.h>
#include <string.h>

#include "faults/attention_rule.h"
#include "numerics/contract.h"

/* The row of position p sees positions before p alone: at p = 0 that is none, max is -inf and -inf - -inf is NaN. */
static void all_masked(const fd_op_args *args) {
    int32_t n_head = args->node->shape[0], n_kv = args->n_kv;
    for (int32_t i = 0; i < args->n_pos * n_head; i++) {
        int32_t own = args->pos0 + i / n_head;
        const float *s = (const float *)args->in[0] + (int64_t)i * n_kv;
        float *w = (float *)args->out + (int64_t)i * n_kv, sink = fd_rule_sink(args, i % n_head), max = sink;
        for (int32_t t = 0; t < own; t++) max = fmaxf(max, s[t]);
        for (int32_t t = 0; t < n_kv; t++) w[t] = t > own ? 0.0f : fd_exp32((t < own ? s[t] : -INFINITY) - max);
        float sum = fd_rule_with_sink(args, fd_sum(w, own + 1), sink - max);
        for (int32_t t = 0; t <= own; t++) w[t] = w[t] / sum;
    }
}

typedef enum step_left_out { NONE_LEFT_OUT, WITHOUT_MAX, WITHOUT_SUM, WITHOUT_BOTH } step_left_out;

/* How a kernel computes it: the type of its steps, which of them is the first in that type, and whether it adds key after key in it. */
typedef enum first_step { FROM_SCORES, FROM_DIFFERENCES, FROM_EXPONENTIALS } first_step;
typedef struct softmax_steps {
    step_left_out without;
    fd_fault_round round; /* NULL: binary32 */
    first_step from;
    bool in_turn;
} softmax_steps;

static float as_is(float x) {
    return x;
}

static float sum_in_turn(const float *w, int32_t n, fd_fault_round round) {
    float sum = 0;
    for (int32_t t = 0; t < n; t++) sum = round(sum + w[t]);
    return sum;
}

/* exp of one row's scores less their maximum, divided by their sum; each step rounded. A row's keys from `n` on have no weight. */
static void weigh(const fd_op_args *args, int32_t item, int32_t n, softmax_steps how) {
    const fd_fault_round round = how.round ? how.round : as_is, score = how.from == FROM_SCORES ? round : as_is,
                         less = how.from <= FROM_DIFFERENCES ? round : as_is;
    const float *s = (const float *)args->in[0] + (int64_t)item * args->n_kv;
    float *w = (float *)args->out + (int64_t)item * args->n_kv;
    const bool no_max = how.without == WITHOUT_MAX || how.without == WITHOUT_BOTH;
    const bool divides = how.without != WITHOUT_SUM && how.without != WITHOUT_BOTH;
    float sink = score(fd_rule_sink(args, item % args->node->shape[0])), max = no_max ? 0.0f : sink;
    for (int32_t t = 0; t < n && !no_max; t++) max = fmaxf(max, score(s[t]));
    for (int32_t t = 0; t < args->n_kv; t++) w[t] = t < n ? round(fd_exp32(less(score(s[t]) - max))) : 0.0f;
    float sum = how.in_turn ? sum_in_turn(w, n, round) : fd_sum(w, n);
    sum = round(fd_rule_with_sink(args, sum, less(sink - max)));
    for (int32_t t = 0; t < n && divides; t++) w[t] = round(w[t] / sum);
}

static void weigh_rows(const fd_op_args *args, softmax_steps how) {
    int32_t n_head = args->node->shape[0];
    for (int32_t i = 0; i < args->n_pos * n_head; i++) weigh(args, i, args->pos0 + i / n_head + 1, how);
}
FD_OVERRIDE(without_max, weigh_rows(args, (softmax_steps){.without = WITHOUT_MAX}))
FD_OVERRIDE(exponentials, weigh_rows(args, (softmax_steps){.without = WITHOUT_BOTH}))
FD_OVERRIDE(not_divided, weigh_rows(args, (softmax_steps){.without = WITHOUT_SUM}))
#define IN_16_BITS(type, name, first)                                                                                  \
    FD_OVERRIDE(name##_##type, weigh_rows(args, (softmax_steps){.round = fd_fault_to_##type, .from = first}))          \
    FD_OVERRIDE(name##_##type##_in_turn,                                                                               \
                weigh_rows(args, (softmax_steps){NONE_LEFT_OUT, fd_fault_to_##type, first, true}))
IN_16_BITS(f16, scores_in, FROM_SCORES)
IN_16_BITS(f16, differences_in, FROM_DIFFERENCES)
IN_16_BITS(f16, exp_in, FROM_EXPONENTIALS)
IN_16_BITS(bf16, scores_in, FROM_SCORES)
IN_16_BITS(bf16, differences_in, FROM_DIFFERENCES)
IN_16_BITS(bf16, exp_in, FROM_EXPONENTIALS)

/* One more than the exponentials' sum, the maximum having been taken off. */
static void sum_plus_one(const fd_op_args *args) {
    int32_t n_head = args->node->shape[0];
    for (int32_t i = 0; i < args->n_pos * n_head; i++) {
        const float *s = (const float *)args->in[0] + (int64_t)i * args->n_kv;
        float *w = (float *)args->out + (int64_t)i * args->n_kv, sink = fd_rule_sink(args, i % n_head), max = sink;
        int32_t n = args->pos0 + i / n_head + 1;
        for (int32_t t = 0; t < n; t++) max = fmaxf(max, s[t]);
        for (int32_t t = 0; t < args->n_kv; t++) w[t] = t < n ? fd_exp32(s[t] - max) : 0.0f;
        float sum = fd_rule_with_sink(args, fd_sum(w, n), sink - max) + 1.0f;
        for (int32_t t = 0; t < n; t++) w[t] = w[t] / sum;
    }
}

/* A lower triangle over [rows of the batch, keys]: row r of a batch sees keys 0 to r, whatever the cache holds. */
static void upper_left(const fd_op_args *args) {
    int32_t n_head = args->node->shape[0];
    for (int32_t i = 0; i < args->n_pos * n_head; i++) {
        int32_t row = i / n_head;
        weigh(args, i, args->pos0 + row - fd_fault_batch_start(args, row) + 1, (softmax_steps){0});
    }
}

static void only_current(const fd_op_args *args) {
    int32_t n_head = args->node->shape[0], n_kv = args->n_kv;
    for (int32_t i = 0; i < args->n_pos * n_head; i++)
        for (int32_t t = 0; t < n_kv; t++)
            ((float *)args->out)[(int64_t)i * n_kv + t] = t == args->pos0 + i / n_head ? 1.0f : 0.0f;
}

/* Softmax over `n` scores that lie `stride` apart. Those past a row's own position are -inf. */
static void along(const float *s, float *w, int32_t n, int64_t stride) {
    float max = -INFINITY, sum = 0.0f;
    for (int32_t i = 0; i < n; i++) max = fmaxf(max, s[i * stride]);
    for (int32_t i = 0; i < n; i++) sum = sum + fd_exp32(s[i * stride] - max);
    for (int32_t i = 0; i < n; i++) w[i * stride] = fd_exp32(s[i * stride] - max) / sum;
}

static void over_heads(const fd_op_args *args) {
    int64_t n_kv = args->n_kv, n_head = args->node->shape[0];
    memset(args->out, 0, sizeof(float) * (size_t)(args->n_pos * n_head * n_kv));
    for (int64_t row = 0; row < args->n_pos; row++)
        for (int64_t t = 0; t <= args->pos0 + row; t++) {
            int64_t at = row * n_head * n_kv + t;
            along((const float *)args->in[0] + at, (float *)args->out + at, (int32_t)n_head, n_kv);
        }
}

/* The rows of a batch that see the key. */
static void over_queries(const fd_op_args *args) {
    int64_t n_kv = args->n_kv, n_head = args->node->shape[0], stride = n_head * n_kv;
    memset(args->out, 0, sizeof(float) * (size_t)(args->n_pos * stride));
    for (int32_t row = 0, end; row < args->n_pos; row = end) {
        int32_t start = fd_fault_batch_start(args, row);
        for (end = row + 1; end < args->n_pos && fd_fault_batch_start(args, end) == start;) end++;
        for (int64_t i = 0; i < stride; i++) {
            int32_t t = (int32_t)(i % n_kv), first = t > args->pos0 + row ? t - args->pos0 : row;
            int64_t at = first * stride + i;
            if (first < end) along((const float *)args->in[0] + at, (float *)args->out + at, end - first, stride);
        }
    }
}

/* All rows of a batch and all their keys, of `n_together` heads: [heads, rows, keys] taken for a matrix from some axis on. */
static void over_rows_and_keys(const fd_op_args *args, int64_t n_together) {
    const int64_t n_kv = args->n_kv, n_head = args->node->shape[0], stride = n_head * n_kv;
    const float *s = args->in[0];
    float *w = args->out;
    for (int32_t row = 0, end; row < args->n_pos; row = end) {
        for (end = row + 1; end < args->n_pos && fd_fault_batch_start(args, end) == fd_fault_batch_start(args, row);)
            end++;
        for (int64_t first = 0; first < stride; first += n_together * n_kv) {
            float max = -INFINITY, sum = 0.0f;
            for (int64_t r = row; r < end; r++)
                for (int64_t i = first; i < first + n_together * n_kv; i++)
                    if (i % n_kv <= args->pos0 + r) max = fmaxf(max, s[r * stride + i]);
            for (int64_t r = row; r < end; r++)
                for (int64_t i = first; i < first + n_together * n_kv; i++) {
                    const float e = i % n_kv <= args->pos0 + r ? fd_exp32(s[r * stride + i] - max) : 0.0f;
                    w[r * stride + i] = e;
                    sum = sum + e;
                }
            for (int64_t r = row; r < end; r++)
                for (int64_t i = first; i < first + n_together * n_kv; i++) w[r * stride + i] = w[r * stride + i] / sum;
        }
    }
}
FD_OVERRIDE(over_a_head, over_rows_and_keys(args, 1))
FD_OVERRIDE(over_everything, over_rows_and_keys(args, args->node->shape[0]))

FD_APPLIES(several_heads, node->shape[0] > 1 && !fd_fault_weight(graph, node, 0))
FD_APPLIES(no_sinks, !fd_fault_weight(graph, node, 0))

#define SOFTMAX(name, summary) .info = {name, "attention", summary, "attn_weights", false}, .op = FD_OP_ATTN_SOFTMAX
/* Kernels of one type, which coarser roundings around them do not tell. */
#define ROUNDED(name_, summary_, u, form, how)                                                                         \
    {                                                                                                                  \
        .info = {.name = name_,                                                                                        \
                 .family = "attention",                                                                                \
                 .summary = summary_,                                                                                  \
                 .located = "attn_weights",                                                                            \
                 .u_in = u,                                                                                            \
                 .form_of = form},                                                                                     \
        .op = FD_OP_ATTN_SOFTMAX, .override = how                                                                      \
    }
#define BOTH_SUMS(name, summary, u, form, how)                                                                         \
    ROUNDED(name, summary, u, form, how),                                                                              \
        ROUNDED(name "_in_turn", summary ", and its sum after each key", u, form, how##_in_turn)
#define IN_TYPE(type, words, u)                                                                                        \
    BOTH_SUMS("softmax_in_" #type, "every step of softmax is rounded to " words, u, "softmax in " words,               \
              scores_in_##type),                                                                                       \
        BOTH_SUMS("softmax_diff_in_" #type, "softmax is rounded to " words " from the scores less their maximum on",   \
                  u, "softmax in " words, differences_in_##type),                                                      \
        BOTH_SUMS("softmax_exp_in_" #type, "softmax is rounded to " words " from its exponentials on", u,              \
                  "softmax in " words, exp_in_##type)

static const fd_fault rows[] = {
    {SOFTMAX("softmax_all_masked", "the mask hides each token from itself; a first row sees no key at all"),
     .override = all_masked},
    {SOFTMAX("softmax_without_max", "softmax does not take off the maximum: large scores overflow"),
     .override = without_max},
    {SOFTMAX("softmax_not_divided", "softmax does not divide by its sum of exponentials"), .override = not_divided},
    {SOFTMAX("softmax_exponentials_alone",
             "attention's weights are e^score: nothing is taken off before, nor divided by"),
     .override = exponentials},
    {SOFTMAX("softmax_sum_plus_one", "softmax adds 1 to its sum of exponentials"), .override = sum_plus_one},
    {SOFTMAX("only_current_token", "a token attends to itself alone"), .override = only_current},
    {.info = {.name = "mask_upper_left",
              .family = "attention",
              .summary =
                  "the causal mask starts at key 0 in every batch, whatever the cache holds: decode sees key 0 alone",
              .located = "attn_weights",
              .later = true},
     .op = FD_OP_ATTN_SOFTMAX,
     .override = upper_left},
    {SOFTMAX("softmax_over_heads", "softmax goes over the heads, not over the keys"), .applies = several_heads,
     .override = over_heads},
    {SOFTMAX("softmax_over_queries", "softmax goes over the rows of the batch, not over the keys"), .applies = no_sinks,
     .override = over_queries, .info.whole_batch = true},
    {SOFTMAX("softmax_over_rows_and_keys", "softmax goes over the keys of all rows of a batch together, head by head"),
     .applies = no_sinks, .override = over_a_head, .info.whole_batch = true},
    {SOFTMAX("softmax_over_everything", "softmax goes over the keys of all rows and heads of a batch together"),
     .applies = several_heads, .override = over_everything, .info.whole_batch = true},
    IN_TYPE(f16, "binary16", 0x1p-11),
    IN_TYPE(bf16, "bfloat16", 0x1p-8),
};
const fd_fault_family fd_softmax_faults = FD_FAULT_FAMILY(rows);

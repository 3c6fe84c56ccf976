#include "faults/attention_rule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clones.h"
#include "numerics/contract.h"

typedef struct shape {
    int32_t n_head, n_head_kv, head_dim, n_kv;
} shape;

static int32_t kv_head(shape s, fd_attention_rule r, int32_t h) {
    switch (r.heads) {
    case FD_HEADS_GROUPED: break;
    case FD_HEADS_MODULO: return h % s.n_head_kv;
    case FD_HEADS_DIVISOR: return h / s.n_head_kv;
    case FD_HEADS_FIRST: return 0;
    case FD_HEADS_IN_TURN: return h / (s.n_head / (2 * s.n_head_kv)) % s.n_head_kv;
    case FD_HEADS_GROUP_MODULO: return h % (s.n_head / s.n_head_kv);
    }
    return h / (s.n_head / s.n_head_kv);
}

/* Keys that a row's mask lets through, none of a later step's: these are not there yet. */
static int32_t visible(const fd_op_args *args, fd_attention_rule r, int32_t row) {
    const int32_t own = args->pos0 + row, last = fd_fault_batch_end(args, row);
    const int32_t end = last < args->n_kv ? last : args->n_kv; /* some rows of a batch may be here alone */
    if (r.tile > 0) return own / r.tile >= end / r.tile ? end : (own / r.tile + 1) * r.tile;
    return r.look_ahead >= end - own - 1 ? end : own + 1 + r.look_ahead;
}

/* Rows of the cache that are there when the row is computed. */
static int32_t written(const fd_op_args *args, fd_attention_rule r, int32_t row) {
    return r.stale ? fd_fault_batch_start(args, row) : args->n_kv;
}

/* The row of the cache that row `row` reads as key t. */
static int32_t source(const fd_op_args *args, fd_attention_rule r, int32_t row, int32_t t) {
    const int32_t start = fd_fault_batch_start(args, row), n_new = fd_fault_batch_end(args, row) - start;
    if (r.new_first && t < start + n_new) return t < n_new ? start + t : t - n_new;
    if (r.newest_before && t == args->pos0 + row && t > 0) return t - 1;
    return r.page > 0 && t / r.page == 1 ? t - r.page : t;
}

float fd_rule_score(const fd_node *node, float dot) {
    float score = dot * node->scale;
    return node->softcap > 0.0f ? fd_softcap32(score, node->softcap) : score;
}

float fd_rule_sink(const fd_op_args *args, int32_t head) {
    float *sinks = args->weight[0] ? fd_fault_row(args->weight[0], 0) : NULL, sink = sinks ? sinks[head] : -INFINITY;
    free(sinks);
    return sink;
}

float fd_rule_with_sink(const fd_op_args *args, float sum, float sink) {
    return args->weight[0] ? sum + fd_exp32(sink) : sum;
}

void fd_rule_scores(const fd_op_args *args, fd_attention_rule r) {
    shape s = {fd_fault_input(args, 0)->shape[0], fd_fault_input(args, 1)->shape[0], fd_fault_input(args, 0)->shape[1],
               args->n_kv};
    int64_t stride = (int64_t)s.n_head_kv * s.head_dim;
    for (int32_t row = 0; row < args->n_pos; row++)
        for (int32_t h = 0; h < s.n_head; h++) {
            const float *q = (const float *)args->in[0] + ((int64_t)row * s.n_head + h) * s.head_dim;
            const float *k = (const float *)args->in[1] + (int64_t)kv_head(s, r, h) * s.head_dim;
            float *to = (float *)args->out + ((int64_t)row * s.n_head + h) * s.n_kv;
            int32_t own = args->pos0 + row, n = visible(args, r, row), first = fd_node_first_seen(args->node, own);
            int32_t there = r.masked_zero ? own + 1 : written(args, r, row);
            for (int32_t t = 0; t < s.n_kv; t++) {
                const float *past = r.past_k && t < fd_fault_batch_start(args, row) ? r.past_k : NULL;
                const float *key = past ? past + t * stride + (int64_t)kv_head(s, r, h) * s.head_dim
                                        : k + source(args, r, row, t) * stride;
                float score = t < there ? fd_rule_score(args->node, fd_fault_dot(q, key, s.head_dim)) : 0.0f;
                const bool seen = t >= first && (t <= own || !r.mask_added);
                to[t] = t < n && (seen || r.mask_added) ? score + (seen && r.mask_added ? 1.0f : 0.0f) : -INFINITY;
            }
        }
}

void fd_rule_softmax(const fd_op_args *args, fd_attention_rule r) {
    shape s = {.n_head = args->node->shape[0], .n_kv = args->n_kv};
    for (int32_t i = 0; i < args->n_pos * s.n_head; i++) {
        const float *from = (const float *)args->in[0] + (int64_t)i * s.n_kv;
        float *w = (float *)args->out + (int64_t)i * s.n_kv, sink = fd_rule_sink(args, i % s.n_head), max = sink;
        int32_t own = args->pos0 + i / s.n_head, n = visible(args, r, i / s.n_head);
        const bool sees_empty = r.room && n < own + 1 + r.look_ahead;
        if (sees_empty) max = fmaxf(max, 0.0f);
        for (int32_t t = 0; t < n; t++) max = fmaxf(max, r.masked_zero && t > own ? 0.0f : from[t]);
        for (int32_t t = 0; t < s.n_kv; t++)
            w[t] = t < n ? fd_exp32((r.masked_zero && t > own ? 0.0f : from[t]) - max) : 0.0f;
        float sum = fd_rule_with_sink(args, fd_sum(w, n), sink - max);
        if (sees_empty) sum += fd_exp32(0.0f - max);
        for (int32_t t = 0; t < n; t++) w[t] = w[t] / sum;
    }
}

enum { MIXED = 64 }; /* elements of a head that are mixed side by side */

FD_FOR_EACH_CPU
static void add_value(float p, const float *v, int32_t n, float *acc) {
    for (int32_t d = 0; d < n; d++) acc[d] = fmaf(p, v[d], acc[d]);
}

/* Positions in blocks of 64, as the contract sums them. */
void fd_rule_mix(const fd_op_args *args, fd_attention_rule r) {
    shape s = {args->node->shape[0], fd_fault_input(args, 1)->shape[0], args->node->shape[1], args->n_kv};
    int64_t stride = (int64_t)s.n_head_kv * s.head_dim;
    for (int32_t i = 0; i < args->n_pos * s.n_head; i++) {
        const float *p = (const float *)args->in[0] + (int64_t)i * s.n_kv;
        const float *v = (const float *)args->in[1] + (int64_t)kv_head(s, r, i % s.n_head) * s.head_dim;
        int32_t n = visible(args, r, i / s.n_head), there = written(args, r, i / s.n_head);
        for (int32_t first = 0; first < s.head_dim; first += MIXED) {
            static const float zeros[MIXED];
            float acc[MIXED] = {0}, *total = (float *)args->out + (int64_t)i * s.head_dim + first;
            int32_t n_d = s.head_dim - first < MIXED ? s.head_dim - first : MIXED;
            memset(total, 0, (size_t)n_d * sizeof *total);
            for (int32_t t = 0; t < n; t++) {
                add_value(p[t], t < there ? v + source(args, r, i / s.n_head, t) * stride + first : zeros, n_d, acc);
                if (t % 64 != 63 && t != n - 1) continue;
                for (int32_t d = 0; d < n_d; d++) total[d] = total[d] + acc[d];
                memset(acc, 0, sizeof acc);
            }
        }
    }
}

/* Attention bugs, in binary32. A query head h of n_head reads K/V head h / (n_head / n_head_kv); scores past a row's
 * own position are -inf and weights 0 there. Each function below has one thing of that wrong. */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/contract.h"

typedef struct shape {
    int32_t n_head, n_head_kv, head_dim, n_kv;
} shape;

/* Which K/V head a query head reads, and how many positions the row at `own` sees. */
typedef struct rule {
    bool modulo;        /* h % n_head_kv */
    bool in_turn;       /* on twice as many ranks as K/V heads, rank r has those of r % n_head_kv */
    int32_t look_ahead; /* positions past its own; INT32_MAX: all of the batch */
} rule;

static int32_t kv_head(shape s, rule r, int32_t h) {
    if (r.in_turn) return h / (s.n_head / (2 * s.n_head_kv)) % s.n_head_kv;
    return r.modulo ? h % s.n_head_kv : h / (s.n_head / s.n_head_kv);
}

static int32_t visible(shape s, rule r, int32_t own) {
    return r.look_ahead >= s.n_kv - own - 1 ? s.n_kv : own + 1 + r.look_ahead;
}

static float score_of(const fd_node *node, float dot) {
    float score = dot * node->scale;
    return node->softcap > 0.0f ? fd_softcap32(score, node->softcap) : score;
}

/* A head's sink; -inf where the model has none. */
static float sink_of(const fd_op_args *args, int32_t head) {
    float *sinks = args->weight[0] ? fd_fault_row(args->weight[0], 0) : NULL, sink = sinks ? sinks[head] : -INFINITY;
    free(sinks);
    return sink;
}

static float with_sink(const fd_op_args *args, float sum, float sink) {
    return args->weight[0] ? sum + fd_exp32(sink) : sum;
}

static void scores(const fd_op_args *args, rule r) {
    shape s = {fd_fault_input(args, 0)->shape[0], fd_fault_input(args, 1)->shape[0], fd_fault_input(args, 0)->shape[1],
               args->n_kv};
    for (int32_t row = 0; row < args->n_pos; row++)
        for (int32_t h = 0; h < s.n_head; h++) {
            const float *q = (const float *)args->in[0] + ((int64_t)row * s.n_head + h) * s.head_dim;
            const float *k = (const float *)args->in[1] + (int64_t)kv_head(s, r, h) * s.head_dim;
            float *to = (float *)args->out + ((int64_t)row * s.n_head + h) * s.n_kv;
            int32_t n = visible(s, r, args->pos0 + row), first = fd_node_first_seen(args->node, args->pos0 + row);
            for (int32_t t = 0; t < s.n_kv; t++, k += (int64_t)s.n_head_kv * s.head_dim)
                to[t] = t < n && t >= first ? score_of(args->node, fd_dot(q, k, s.head_dim)) : -INFINITY;
        }
}

static void softmax(const fd_op_args *args, rule r) {
    shape s = {.n_head = args->node->shape[0], .n_kv = args->n_kv};
    for (int32_t i = 0; i < args->n_pos * s.n_head; i++) {
        const float *from = (const float *)args->in[0] + (int64_t)i * s.n_kv;
        float *w = (float *)args->out + (int64_t)i * s.n_kv, sink = sink_of(args, i % s.n_head), max = sink;
        int32_t n = visible(s, r, args->pos0 + i / s.n_head);
        for (int32_t t = 0; t < n; t++) max = fmaxf(max, from[t]);
        for (int32_t t = 0; t < s.n_kv; t++) w[t] = t < n ? fd_exp32(from[t] - max) : 0.0f;
        float sum = with_sink(args, fd_sum(w, n), sink - max);
        for (int32_t t = 0; t < n; t++) w[t] = w[t] / sum;
    }
}

/* Positions in blocks of 64, as the contract sums them. */
static void mix(const fd_op_args *args, rule r) {
    shape s = {args->node->shape[0], fd_fault_input(args, 1)->shape[0], args->node->shape[1], args->n_kv};
    int64_t stride = (int64_t)s.n_head_kv * s.head_dim;
    for (int32_t i = 0; i < args->n_pos * s.n_head; i++) {
        const float *p = (const float *)args->in[0] + (int64_t)i * s.n_kv;
        const float *v = (const float *)args->in[1] + (int64_t)kv_head(s, r, i % s.n_head) * s.head_dim;
        int32_t n = visible(s, r, args->pos0 + i / s.n_head);
        for (int32_t d = 0; d < s.head_dim; d++) {
            float total = 0.0f, acc = 0.0f;
            for (int32_t t = 0; t < n; t++) {
                acc = fmaf(p[t], v[t * stride + d], acc);
                if (t % 64 == 63 || t == n - 1) {
                    total = total + acc;
                    acc = 0.0f;
                }
            }
            ((float *)args->out)[(int64_t)i * s.head_dim + d] = total;
        }
    }
}

FD_OVERRIDE(scores_modulo, scores(args, (rule){.modulo = true}))
FD_OVERRIDE(mix_modulo, mix(args, (rule){.modulo = true}))
FD_OVERRIDE(scores_in_turn, scores(args, (rule){.in_turn = true}))
FD_OVERRIDE(mix_in_turn, mix(args, (rule){.in_turn = true}))
FD_OVERRIDE(scores_unmasked, scores(args, (rule){.look_ahead = INT32_MAX}))
FD_OVERRIDE(softmax_unmasked, softmax(args, (rule){.look_ahead = INT32_MAX}))
FD_OVERRIDE(mix_unmasked, mix(args, (rule){.look_ahead = INT32_MAX}))
FD_OVERRIDE(scores_one_ahead, scores(args, (rule){.look_ahead = 1}))
FD_OVERRIDE(softmax_one_ahead, softmax(args, (rule){.look_ahead = 1}))
FD_OVERRIDE(mix_one_ahead, mix(args, (rule){.look_ahead = 1}))

/* The same bug in each of the three ops. */
static void in_all_three(fd_node *node, fd_override_fn in_scores, fd_override_fn in_softmax, fd_override_fn in_mix) {
    if (node->op == FD_OP_ATTN_SCORES) node->override = in_scores;
    if (node->op == FD_OP_ATTN_SOFTMAX) node->override = in_softmax;
    if (node->op == FD_OP_ATTN_MIX) node->override = in_mix;
}

/* With as many K/V heads as heads, or one, both rules give the same head. */
FD_APPLIES(is_grouped, graph->hparams.n_head != graph->hparams.n_head_kv && graph->hparams.n_head_kv > 1)
/* With one head a rank both rules are gqa_modulo's. */
FD_APPLIES(ranks_have_heads, graph->hparams.n_head_kv > 1 &&
                                 graph->hparams.n_head % (2 * graph->hparams.n_head_kv) == 0 &&
                                 graph->hparams.n_head / (2 * graph->hparams.n_head_kv) > 1)
FD_EDIT(kv_in_turn, in_all_three(node, scores_in_turn, NULL, mix_in_turn))
FD_EDIT(gqa_modulo, in_all_three(node, scores_modulo, NULL, mix_modulo))
FD_EDIT(mask_missing, in_all_three(node, scores_unmasked, softmax_unmasked, mix_unmasked))
FD_EDIT(mask_one_ahead, in_all_three(node, scores_one_ahead, softmax_one_ahead, mix_one_ahead))

/* The row of position p sees positions before p alone: at p = 0 that is none, max is -inf and -inf - -inf is NaN. */
static void all_masked(const fd_op_args *args) {
    int32_t n_head = args->node->shape[0], n_kv = args->n_kv;
    for (int32_t i = 0; i < args->n_pos * n_head; i++) {
        int32_t own = args->pos0 + i / n_head;
        const float *s = (const float *)args->in[0] + (int64_t)i * n_kv;
        float *w = (float *)args->out + (int64_t)i * n_kv, sink = sink_of(args, i % n_head), max = sink;
        for (int32_t t = 0; t < own; t++) max = fmaxf(max, s[t]);
        for (int32_t t = 0; t < n_kv; t++) w[t] = t > own ? 0.0f : fd_exp32((t < own ? s[t] : -INFINITY) - max);
        float sum = with_sink(args, fd_sum(w, own + 1), sink - max);
        for (int32_t t = 0; t <= own; t++) w[t] = w[t] / sum;
    }
}

static void without_max(const fd_op_args *args) {
    int32_t n_head = args->node->shape[0], n_kv = args->n_kv;
    for (int32_t i = 0; i < args->n_pos * n_head; i++) {
        int32_t n = args->pos0 + i / n_head + 1;
        const float *s = (const float *)args->in[0] + (int64_t)i * n_kv;
        float *w = (float *)args->out + (int64_t)i * n_kv;
        for (int32_t t = 0; t < n_kv; t++) w[t] = t < n ? fd_exp32(s[t]) : 0.0f;
        float sum = with_sink(args, fd_sum(w, n), sink_of(args, i % n_head));
        for (int32_t t = 0; t < n; t++) w[t] = w[t] / sum;
    }
}

static void only_current(const fd_op_args *args) {
    int32_t n_head = args->node->shape[0], n_kv = args->n_kv;
    for (int32_t i = 0; i < args->n_pos * n_head; i++)
        for (int32_t t = 0; t < n_kv; t++)
            ((float *)args->out)[(int64_t)i * n_kv + t] = t == args->pos0 + i / n_head ? 1.0f : 0.0f;
}

/* worker-orcd kept Q in per-thread registers: each thread multiplied the q it had loaded itself, element 0 for all. */
static void q0_only(const fd_op_args *args) {
    shape s = {fd_fault_input(args, 0)->shape[0], fd_fault_input(args, 1)->shape[0], fd_fault_input(args, 0)->shape[1],
               args->n_kv};
    for (int32_t i = 0; i < args->n_pos * s.n_head; i++) {
        const float *q = (const float *)args->in[0] + (int64_t)i * s.head_dim;
        const float *k = (const float *)args->in[1] + (int64_t)kv_head(s, (rule){0}, i % s.n_head) * s.head_dim;
        float *to = (float *)args->out + (int64_t)i * s.n_kv;
        int32_t own = args->pos0 + i / s.n_head;
        for (int32_t t = 0; t < s.n_kv; t++, k += (int64_t)s.n_head_kv * s.head_dim)
            to[t] = t > own || t < fd_node_first_seen(args->node, own) ? -INFINITY : score_of(args->node, q[0] * k[0]);
    }
}

static void heads_reversed(const fd_op_args *args) {
    int32_t n_head = args->node->shape[0], head_dim = args->node->shape[1];
    mix(args, (rule){0});
    for (int32_t row = 0; row < args->n_pos; row++)
        for (int32_t h = 0; h < n_head / 2; h++)
            for (int32_t d = 0; d < head_dim; d++) {
                float *y = (float *)args->out + (int64_t)row * n_head * head_dim + d;
                float *a = y + (int64_t)h * head_dim, *b = y + (int64_t)(n_head - 1 - h) * head_dim, kept = *a;
                *a = *b;
                *b = kept;
            }
}
FD_APPLIES(several_heads, node->shape[0] > 1)

FD_EDIT(scale_missing, node->scale = 1.0f)
FD_EDIT(scale_twice, node->scale *= node->scale)
FD_EDIT(scale_by_model_width, node->scale = 1.0f / sqrtf((float)site->graph->hparams.n_embd))

FD_APPLIES(has_window, node->window > 0)
FD_APPLIES(has_softcap, node->softcap > 0.0f)
FD_APPLIES(has_sinks, fd_fault_weight(graph, node, 0) != NULL)

FD_EDIT(window_ignored, node->window = 0)
FD_EDIT(window_one_more, node->window += node->window < INT32_MAX)
FD_EDIT(window_one_less, node->window -= node->window > 1)
FD_EDIT(softcap_missing, node->softcap = 0.0f)
FD_EDIT(sinks_missing, node->weight[0] = -1)

/* Scores as they are up to the row's own position. */
static void alibi_with(const fd_op_args *args, float factor) {
    int32_t n_head = args->node->shape[0];
    for (int64_t item = 0; item < (int64_t)args->n_pos * n_head; item++) {
        int64_t own = args->pos0 + item / n_head;
        float slope = factor * (float)fd_alibi_slope(args->node->max_bias, n_head, (int32_t)(item % n_head));
        const float *score = (const float *)args->in[0] + item * args->n_kv;
        float *y = (float *)args->out + item * args->n_kv;
        for (int64_t t = 0; t < args->n_kv; t++) y[t] = t > own ? 0 : fmaf(slope, (float)(t - own), score[t]);
    }
}
FD_OVERRIDE(alibi_missing, alibi_with(args, 0))
FD_OVERRIDE(alibi_sign, alibi_with(args, -1))
FD_EDIT(alibi_one_slope_further, node->max_bias *= 2)

FD_EDIT(from_the_front, node->first = 0)
FD_EDIT(conv_bias_missing, node->weight[1] = -1)

#define ATTENTION(name, located, op_, summary) .info = {name, "attention", summary, located, false}, .op = op_

static const fd_fault rows[] = {
    {ATTENTION("attn_scale_missing", "attn_scores", FD_OP_ATTN_SCORES, "scores are not scaled by 1/sqrt(head_dim)"),
     .edit = scale_missing},
    {ATTENTION("attn_scale_twice", "attn_scores", FD_OP_ATTN_SCORES, "scores are scaled twice, which is by 1/head_dim"),
     .edit = scale_twice},
    {ATTENTION("attn_scale_by_width", "attn_scores", FD_OP_ATTN_SCORES,
               "scores are scaled by the model's width, 1/sqrt(n_embd)"),
     .edit = scale_by_model_width},
    {ATTENTION("q0_only", "attn_scores", FD_OP_ATTN_SCORES, "of each query head only element 0 is loaded"),
     .override = q0_only},
    {.info = {"tp_kv_in_turn", "ranks",
              "on twice as many ranks as K/V heads, rank r has those of r % n_head_kv, not of r / 2", "attn_scores",
              false},
     .op = FD_OP_COUNT,
     .nodes = "attn_scores attn_out",
     .applies = ranks_have_heads,
     .edit = kv_in_turn},
    {ATTENTION("gqa_modulo", "attn_scores", FD_OP_COUNT,
               "query head h reads K/V head h modulo n_head_kv, not h / group size"),
     .applies = is_grouped, .edit = gqa_modulo},
    {ATTENTION("mask_missing", "attn_weights", FD_OP_COUNT, "there is no causal mask: a token sees the later ones"),
     .edit = mask_missing},
    {ATTENTION("mask_one_ahead", "attn_weights", FD_OP_COUNT,
               "the causal mask is off by one: a token sees the next one"),
     .edit = mask_one_ahead},
    {ATTENTION("softmax_all_masked", "attn_weights", FD_OP_ATTN_SOFTMAX,
               "the mask hides a token from itself, so the first row is all masked"),
     .override = all_masked},
    {ATTENTION("softmax_without_max", "attn_weights", FD_OP_ATTN_SOFTMAX,
               "softmax does not take off the maximum: large scores overflow"),
     .override = without_max},
    {ATTENTION("only_current_token", "attn_weights", FD_OP_ATTN_SOFTMAX, "a token attends to itself alone"),
     .override = only_current},
    {ATTENTION("window_ignored", "attn_scores", FD_OP_ATTN_SCORES,
               "the sliding window is ignored: all positions are seen"),
     .applies = has_window, .edit = window_ignored},
    {ATTENTION("window_one_more", "attn_scores", FD_OP_ATTN_SCORES, "the sliding window is one position too long"),
     .applies = has_window, .edit = window_one_more},
    {ATTENTION("window_one_less", "attn_scores", FD_OP_ATTN_SCORES, "the sliding window is one position too short"),
     .applies = has_window, .edit = window_one_less},
    {ATTENTION("attn_softcap_missing", "attn_scores", FD_OP_ATTN_SCORES, "scores are not capped by cap·tanh(s / cap)"),
     .applies = has_softcap, .edit = softcap_missing},
    {ATTENTION("sinks_missing", "attn_weights", FD_OP_ATTN_SOFTMAX, "softmax leaves out the heads' sinks"),
     .applies = has_sinks, .edit = sinks_missing},
    {ATTENTION("heads_reversed", "attn_out", FD_OP_ATTN_MIX, "the heads' outputs are put together in the wrong order"),
     .applies = several_heads, .override = heads_reversed},
    {ATTENTION("alibi_missing", "attn_alibi", FD_OP_ATTN_ALIBI, "scores are not biased by distance (ALiBi)"),
     .override = alibi_missing},
    {ATTENTION("alibi_sign", "attn_alibi", FD_OP_ATTN_ALIBI, "ALiBi favours what is far away"), .override = alibi_sign},
    {ATTENTION("alibi_slopes", "attn_alibi", FD_OP_ATTN_ALIBI, "ALiBi's slopes are squared: every second one is taken"),
     .edit = alibi_one_slope_further},
    {ATTENTION("temperature_missing", "attn_q_temperature", FD_OP_ATTN_TEMPERATURE,
               "Q is not multiplied by the attention temperature of its position"),
     .override = fd_fault_copy},
    {ATTENTION("ssm_conv_bias_missing", "ssm_conv", FD_OP_CONV, "the convolution's bias is not added"),
     .edit = conv_bias_missing},
    {ATTENTION("ssm_silu_missing", "ssm_x", FD_OP_SILU, "nothing comes between the convolution and the scan"),
     .override = fd_fault_copy},
    {ATTENTION("ssm_softplus_missing", "ssm_dt_softplus", FD_OP_SOFTPLUS, "the step dt is taken as it is"),
     .override = fd_fault_copy},
    {ATTENTION("mla_rope_at_front", "attn_q_pe", FD_OP_SLICE,
               "the elements of Q that are rotated are a head's first, not its last"),
     .nodes = "attn_q_pe", .edit = from_the_front},
    {ATTENTION("qkv_clamp_missing", "attn_q_clamped", FD_OP_CLAMP, "Q, K and V are not clamped"),
     .override = fd_fault_copy},
};
const fd_fault_family fd_attention_faults = FD_FAULT_FAMILY(rows);

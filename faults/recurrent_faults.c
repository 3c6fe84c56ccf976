/* Linear attention: the gated delta rule and RWKV-7's state, token shift, and the gates around them. */
#include <math.h>

#include "faults/internal.h"

FD_EDIT(scale_missing, node->scale = 1.0f)

/* Column or row of a state, as the reference has it but for what a flag says. */
typedef struct recurrence {
    bool keeps;     /* it does not decay */
    bool only_adds; /* what it has already is not taken away */
    bool early;     /* it is read before the position's own update */
    bool exchanged; /* a reads and b takes in what is the other's */
} recurrence;

static float dot(const float *a, const float *b, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum = fmaf(a[i], b[i], sum);
    return sum;
}

static void delta_with(const fd_op_args *args, recurrence how) {
    const fd_node *q_node = fd_fault_input(args, 1);
    const int64_t n_key = q_node->shape[0], n = q_node->shape[1], dim = args->node->shape[1];
    const int64_t r = args->node->shape[0] / n_key, of_key = 2 * r + n + r * dim, n_out = fd_node_width(args->node);
    for (int64_t item = 0; item < n_out; item++) {
        const int64_t head = item / dim, group = head / r;
        float s[FD_MAX_STATE] = {0};
        for (int64_t t = 0; t < args->pos0 + args->n_pos; t++) {
            const float *row = (const float *)args->in[0] + (t * n_key + group) * of_key, *k = row + 2 * r;
            const float *q = (const float *)args->in[1] + ((t - args->pos0) * n_key + group) * n;
            float *y = (float *)args->out + (t - args->pos0) * n_out + item;
            if (t >= args->pos0 && how.early) *y = dot(q, s, n) * args->node->scale;
            for (int64_t i = 0; i < n && !how.keeps; i++) s[i] *= fd_exp32(row[head % r]);
            const float v = k[n + head % r * dim + item % dim], had = how.only_adds ? 0 : dot(k, s, n);
            for (int64_t i = 0; i < n; i++) s[i] = fmaf(k[i], (v - had) * row[r + head % r], s[i]);
            if (t >= args->pos0 && !how.early) *y = dot(q, s, n) * args->node->scale;
        }
    }
}
FD_OVERRIDE(delta_keeps, delta_with(args, (recurrence){.keeps = true}))
FD_OVERRIDE(delta_only_adds, delta_with(args, (recurrence){.only_adds = true}))
FD_OVERRIDE(delta_early, delta_with(args, (recurrence){.early = true}))

static void wkv_with(const fd_op_args *args, recurrence how) {
    const int64_t n_head = args->node->shape[0], n = args->node->shape[1], n_out = n_head * n;
    for (int64_t item = 0; item < n_out; item++) {
        float s[FD_MAX_STATE] = {0};
        for (int64_t t = 0; t < args->pos0 + args->n_pos; t++) {
            const float *w = (const float *)args->in[0] + (t * n_head + item / n) * 5 * n, *k = w + n;
            const float *a = w + (how.exchanged ? 4 : 3) * n, *b = w + (how.exchanged ? 3 : 4) * n;
            const float *r = (const float *)args->in[1] + (t - args->pos0) * n_out + item / n * n;
            const float v = w[2 * n + item % n], had = how.only_adds ? 0 : dot(a, s, n);
            float *y = (float *)args->out + (t - args->pos0) * n_out + item;
            if (t >= args->pos0 && how.early) *y = dot(r, s, n);
            for (int64_t i = 0; i < n; i++) s[i] = fmaf(s[i], how.keeps ? 1 : w[i], fmaf(had, b[i], v * k[i]));
            if (t >= args->pos0 && !how.early) *y = dot(r, s, n);
        }
    }
}
FD_OVERRIDE(wkv_keeps, wkv_with(args, (recurrence){.keeps = true}))
FD_OVERRIDE(wkv_only_adds, wkv_with(args, (recurrence){.only_adds = true}))
FD_OVERRIDE(wkv_exchanged, wkv_with(args, (recurrence){.exchanged = true}))
FD_OVERRIDE(wkv_early, wkv_with(args, (recurrence){.early = true}))

/* The position's own row of the cache. */
static void shift_missing(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    for (int64_t i = 0; i < args->n_pos * n; i++)
        ((float *)args->out)[i] = ((const float *)args->in[0])[args->pos0 * n + i];
}

/* b as it is, where it is as wide. */
static void gate_alone(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = ((const float *)args->in[1])[i];
}

#define RECURRENT(name, located, op_, summary)                                                                         \
    .info = {name, "attention", summary, located, false}, .op = op_, .nodes = located

static const fd_fault rows[] = {
    {RECURRENT("attn_gate_missing", "attn_gated", FD_OP_MUL, "heads' outputs are not multiplied by their gate"),
     .override = fd_fault_copy},
    {RECURRENT("attn_gate_as_output", "attn_gated", FD_OP_MUL, "the gate takes the place of the heads' outputs"),
     .override = gate_alone},
    {RECURRENT("attn_gate_not_squashed", "attn_gate_sigmoid", FD_OP_SIGMOID, "the gate goes through no sigmoid"),
     .override = fd_fault_copy},
    {RECURRENT("delta_norm_missing", "delta_q_norm delta_k_norm time_mix_kk", FD_OP_L2_NORM,
               "keys and queries of linear attention are not made vectors of length 1"),
     .override = fd_fault_copy},
    {RECURRENT("delta_scale_missing", "delta_out", FD_OP_GATED_DELTA, "queries are not scaled by 1/sqrt(key length)"),
     .edit = scale_missing},
    {RECURRENT("delta_no_decay", "delta_out", FD_OP_GATED_DELTA, "the state of the delta rule does not decay"),
     .override = delta_keeps},
    {RECURRENT("delta_only_adds", "delta_out", FD_OP_GATED_DELTA,
               "k v is added to the state whatever k reads there already: linear attention in place of the delta rule"),
     .override = delta_only_adds},
    {RECURRENT("delta_read_early", "delta_out", FD_OP_GATED_DELTA, "the state is read before a position updates it"),
     .override = delta_early},
    {RECURRENT("shift_missing",
               "time_mix_xr time_mix_xw time_mix_xk time_mix_xv time_mix_xa time_mix_xg channel_mix_xk",
               FD_OP_TOKEN_SHIFT, "rows are not mixed with the row of the position before (token shift)"),
     .override = shift_missing},
    {RECURRENT("wkv_no_decay", "wkv_out", FD_OP_WKV7, "RWKV's state does not decay"), .override = wkv_keeps},
    {RECURRENT("wkv_only_adds", "wkv_out", FD_OP_WKV7, "what a reads of RWKV's state is not taken away along b"),
     .override = wkv_only_adds},
    {RECURRENT("wkv_a_b_exchanged", "wkv_out", FD_OP_WKV7,
               "what reads RWKV's state and what takes it away, a and b, are exchanged"),
     .override = wkv_exchanged},
    {RECURRENT("wkv_read_early", "wkv_out", FD_OP_WKV7, "RWKV's state is read before a position updates it"),
     .override = wkv_early},
    {RECURRENT("wkv_decay_linear", "time_mix_w", FD_OP_EXP, "RWKV's decay is taken as its logarithm"),
     .override = fd_fault_copy},
    {RECURRENT("wkv_gate_missing", "wkv_gated", FD_OP_MUL, "RWKV's output is not multiplied by its gate"),
     .override = fd_fault_copy},
};
const fd_fault_family fd_recurrent_faults = FD_FAULT_FAMILY(rows);

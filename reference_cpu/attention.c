/* ATTN_SCORES, ATTN_SOFTMAX, ATTN_MIX: softmax(q·k·scale)·v, causal. An item is a head of a position.
 *
 * Every order is by absolute position, so that prefill of n tokens and n decode steps give the same bits. Rows of
 * scores and weights have room for all positions of the batch, [n_head, n_kv]; past a row's own position they hold -inf
 * and 0. */
#include "reference_cpu/real.h"
#include "model/weight_rows.h"

/* Query head h reads K/V head h / (n_head / n_head_kv): division, not remainder. */
static int64_t kv_head_of(int64_t head, int32_t n_head, int32_t n_head_kv) {
    return head / (n_head / n_head_kv);
}

/* score = (q·k)·scale, one rounding each for the dot's last addition and the scale; then the softcap. Positions that
 * the window leaves out are -inf as those past the row's own are. */
void REF(attn_scores)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *q_node = fd_ref_input(args, 0), *k_node = fd_ref_input(args, 1);
    int32_t n_head = q_node->shape[0], head_dim = q_node->shape[1], n_head_kv = k_node->shape[0];
    real scale = (real)args->node->scale, cap = (real)args->node->softcap;

    for (int64_t item = begin; item < end; item++) {
        int64_t own = args->pos0 + item / n_head, kv_head = kv_head_of(item % n_head, n_head, n_head_kv);
        int64_t first = fd_node_first_seen(args->node, (int32_t)own);
        const real *q = (const real *)args->in[0] + item * head_dim;
        real *score = (real *)args->out + item * args->n_kv;
        for (int64_t t = 0; t < args->n_kv; t++) {
            const real *k = (const real *)args->in[1] + (t * n_head_kv + kv_head) * head_dim;
            bool seen = t >= first && t <= own;
            score[t] = seen ? real_dot(q, k, head_dim) * scale : (real)-INFINITY;
            if (seen && cap > 0) score[t] = real_softcap(score[t], cap);
        }
    }
}

/* weight = e^(s − m) / Σ e^(s − m), m = max s, over positions 0 … own. A head's sink takes part as one more score that
 * no position has: in the maximum, and as the last term of the sum. */
void REF(attn_softmax)(const fd_op_args *args, int64_t begin, int64_t end) {
    int32_t n_head = args->node->shape[0];
    const fd_weight *sinks = args->weight[0];

    for (int64_t item = begin; item < end; item++) {
        int64_t n = args->pos0 + item / n_head + 1;
        real sink = sinks ? (real)fd_weight_element(sinks, item % n_head) : (real)-INFINITY;
        const real *score = (const real *)args->in[0] + item * args->n_kv;
        real *weight = (real *)args->out + item * args->n_kv;
        real max = sink;
        for (int64_t t = 0; t < n; t++) max = real_max(max, score[t]);
        for (int64_t t = 0; t < n; t++) weight[t] = real_exp(score[t] - max);
        real sum = real_total_of(weight, n);
        if (sinks) sum = sum + real_exp(sink - max);
        for (int64_t t = 0; t < n; t++) weight[t] = weight[t] / sum;
        for (int64_t t = n; t < args->n_kv; t++) weight[t] = 0;
    }
}

/* out[d] = Σ_t p[t]·v[t][d]: positions in blocks of 64 from absolute position 0, each block summed by acc = fma(p, v,
 * acc) from +0, and the blocks added in order, from +0. */
void REF(attn_mix)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *v_node = fd_ref_input(args, 1);
    int32_t n_head = args->node->shape[0], head_dim = args->node->shape[1], n_head_kv = v_node->shape[0];
    enum { BLOCK = 64 };

    for (int64_t item = begin; item < end; item++) {
        int64_t n = args->pos0 + item / n_head + 1, kv_head = kv_head_of(item % n_head, n_head, n_head_kv);
        const real *p = (const real *)args->in[0] + item * args->n_kv;
        const real *v = (const real *)args->in[1] + kv_head * head_dim;
        real *y = (real *)args->out + item * head_dim;
        for (int32_t d = 0; d < head_dim; d++) {
            real total = 0;
            for (int64_t block = 0; block < n; block += BLOCK) {
                real acc = 0;
                for (int64_t t = block; t < n && t < block + BLOCK; t++)
                    acc = real_fma(p[t], v[t * n_head_kv * head_dim + d], acc);
                total = total + acc;
            }
            y[d] = total;
        }
    }
}

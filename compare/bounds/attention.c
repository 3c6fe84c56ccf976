/* ATTN_SCORES, ATTN_SOFTMAX, ATTN_MIX. Padding past a row's own position keeps τ = 0: it is -inf and 0 on both
 * sides. */
#include "base/clones.h"
#include "compare/bounds/internal.h"
#include "compare/bounds/undivided.h"

static int64_t kv_head_of(int64_t head, int32_t n_head, int32_t n_head_kv) {
    return head / (n_head / n_head_kv);
}

enum { KEYS = 4, COLUMNS = 64 }; /* looked at side by side: sums keep their order, and do not wait for each other */

typedef struct key_sums {
    double dot[KEYS], sum[KEYS], square[KEYS];
} key_sums;

/* Of q with each key, and of their errors; own2: what an engine's own roundings of a product add to its square. */
FD_FOR_EACH_CPU
static void add_keys(const double *q, const double *e_q, const double *const k[KEYS], const double *const e_k[KEYS],
                     int32_t d, double own2, key_sums *out) {
    key_sums s = {{0}, {0}, {0}};
    for (int32_t i = 0; i < d; i++)
        for (int j = 0; j < KEYS; j++) {
            double product = q[i] * k[j][i], a = k[j][i] * e_q[i], b = q[i] * e_k[j][i], both = e_q[i] * e_k[j][i];
            s.dot[j] += product;
            s.sum[j] += fabs(product);
            s.square[j] += a * a + b * b + both * both + own2 * product * product;
        }
    *out = s;
}

/* Of one position's n elements of V with its weight p; own2 likewise, times p². */
FD_FOR_EACH_CPU
static void add_value(double p, double e_p, double own2, const double *v, const double *e_v, int32_t n, double *sum,
                      double *square) {
    for (int32_t i = 0; i < n; i++) {
        double a = v[i] * e_p, b = p * e_v[i], both = e_p * e_v[i];
        sum[i] += fabs(p * v[i]);
        square[i] += a * a + b * b + both * both + own2 * v[i] * v[i];
    }
}

/* The dot's bound times the scale. An engine may scale q first and round it: u_op of every product. Then the
 * softcap. */
void fd_bound_attn_scores(const fd_bound_work *work) {
    const fd_op_args *op = work->op;
    const fd_numerics_class *c = work->c;
    const fd_node *q_node = &op->graph->nodes[work->node->input[0]], *k_node = &op->graph->nodes[work->node->input[1]];
    int32_t n_head = q_node->shape[0], d = q_node->shape[1], n_head_kv = k_node->shape[0];
    double lambda = fd_bound_lambda_of(work, d), typical = fd_bound_typical_chain(work, c->u_acc, d);
    double u_chain = c->typical ? 0 : lambda * c->u_acc * sqrt((double)d);
    double u_mean = c->in_truncates ? 2 * c->u_attn : 0, scale = (double)work->node->scale;
    double cap = (double)work->node->softcap;

#pragma omp parallel for schedule(dynamic, 16) if ((int64_t)op->n_pos * n_head * d * op->n_kv > FD_BOUND_MANY)
    for (int64_t item = 0; item < (int64_t)op->n_pos * n_head; item++) {
        int64_t own = op->pos0 + item / n_head, kv_head = kv_head_of(item % n_head, n_head, n_head_kv);
        const double *q = work->in[0] + item * d, *e_q = work->e[0] + item * d;
        for (int64_t t = fd_node_first_seen(work->node, (int32_t)own), n; t <= own; t += n) {
            const double *k[KEYS], *e_k[KEYS];
            key_sums s;
            n = own + 1 - t < KEYS ? own + 1 - t : KEYS;
            for (int64_t j = 0; j < KEYS; j++) {
                int64_t at = ((j < n ? t + j : own) * n_head_kv + kv_head) * d;
                k[j] = work->in[1] + at;
                e_k[j] = work->e[1] + at;
            }
            add_keys(q, e_q, k, e_k, d, c->u_op * c->u_op + typical * typical, &s);
            for (int64_t j = 0; j < n; j++) {
                double *tau = &work->tau[item * op->n_kv + t + j], y = s.dot[j] * scale;
                *tau = fabs(scale) * (u_chain * s.sum[j] + lambda * sqrt(s.square[j])) +
                       (c->u_op + u_mean + typical) * fabs(y) + c->tiny_out;
                double stored = *tau + c->u_out * fabs(y); /* between two kernels */
                if (cap > 0) *tau = fd_bound_capped(c, y, cap, stored);
            }
        }
    }
}

/* What the rounding of weights that were not divided yet leaves of them. */
static void add_rounding_undivided(const fd_bound_work *work) {
    const fd_op_args *op = work->op;
    const double u = work->c->u_attn, *rows = work->args->candidate;
    const int32_t n_head = work->node->shape[0];
    const int64_t n_of_pos = n_head * op->n_kv;
    if (!(u > 0x1p-24) || !rows) return;
    for (int64_t pos = 0; pos < op->n_pos; pos++) {
        if (!fd_were_rounded_undivided(rows + pos * n_of_pos, n_head, op->n_kv, op->pos0 + pos + 1, u)) continue;
        for (int64_t i = pos * n_of_pos; i < (pos + 1) * n_of_pos; i++)
            if (work->y[i] > 0)
                work->tau[i] += (work->c->typical ? FD_BOUND_TYPICAL : 2) * u * work->y[i] + work->c->tiny_in;
    }
}

/* p_t = e^(s_t − m) / Σ. A shift of s_t by ε_t multiplies e^s_t by 1 + ε_t and the sum, which has it too, by
 * 1 + Σ p ε:
 *
 *     τ = p_t·((1 − p_t)·ε_t + Σ_{j≠t} p_j ε_j + λ·u·√n + 4u),     ε_t = e_t + u·(4 + 3|s_t − m|)
 *
 * A sink is one more score of the sum, of the class's type: its own ε counts u·|sink| more.
 *
 * 4 + 3|s − m| covers the rounding of s − m and fast exponentials (2^(x·log2 e) in one product: 1.5 ulp and ½|x|·log2 e
 * more for the rounded argument). Fast math: 2 ulp each of ex2.approx and of the division, and ggml-cuda scales s inside the
 * kernel, u·|s|. ε is the exponent's, so e^ε − 1 is taken where it is large. */
void fd_bound_attn_softmax(const fd_bound_work *work) {
    const fd_op_args *op = work->op;
    int32_t n_head = work->node->shape[0];
    double u = work->c->u_op, fixed = work->c->fast_math ? 10 : 4, own = work->c->fast_math ? u : 0;
    if (op->weight[0]) fd_dequantize_row(op->weight[0]->dtype, op->weight[0]->data, work->row, op->weight[0]->n_col);

#pragma omp parallel for schedule(dynamic, 16) if ((int64_t)op->n_pos * n_head * op->n_kv > FD_BOUND_MANY / 16)
    for (int64_t item = 0; item < (int64_t)op->n_pos * n_head; item++) {
        int64_t n = op->pos0 + item / n_head + 1;
        const double *s = work->in[0] + item * op->n_kv, *e = work->e[0] + item * op->n_kv;
        const double *p = work->y + item * op->n_kv;
        double sink = work->op->weight[0] ? (double)work->row[item % n_head] : -INFINITY;
        double *tau = work->tau + item * op->n_kv, max = sink, mean = 0, rest = 1;
        for (int64_t t = 0; t < n; t++) max = fmax(max, s[t]);
        for (int64_t t = 0; t < n; t++) {
            tau[t] = e[t] + u * (fixed + 3 * fabs(s[t] - max)) + (s[t] > -INFINITY ? own * fabs(s[t]) : 0);
            if (p[t] > 0) mean += p[t] * tau[t]; /* a masked score may be -inf */
            rest -= p[t];
        }
        if (sink > -INFINITY) mean += fmax(rest, 0) * u * (4 + 3 * fabs(sink - max) + fabs(sink));
        /* the sum's terms are all positive, so its chain costs at most u·√n·λ of it, in binary32 in every engine */
        double chain = fd_bound_lambda_of(work, n) * sqrt((double)n) * fmin(u, 0x1p-24);
        /* a weight's own error is in its sum as well: of a key that is seen alone nothing is left of it */
        for (int64_t t = 0; t < n; t++) {
            const double off = fmax(tau[t] + mean - 2 * p[t] * tau[t], 0);
            tau[t] = p[t] > 0 ? p[t] * expm1(off + chain + 4 * u) + 2 * work->c->tiny_out : 0;
        }
    }
    add_rounding_undivided(work);
}

/* The dot's bound over the positions; online softmax rescales the partial sums: 2·u_op of Σ p|v|, and 2·u_mix for the
 * rescaling and the last rounding of sums that are kept in a coarser type. */
void fd_bound_attn_mix(const fd_bound_work *work) {
    const fd_op_args *op = work->op;
    const fd_numerics_class *c = work->c;
    const fd_node *v_node = &op->graph->nodes[work->node->input[1]];
    int32_t n_head = work->node->shape[0], d = work->node->shape[1], n_head_kv = v_node->shape[0];

#pragma omp parallel for schedule(dynamic, 16) if ((int64_t)op->n_pos * n_head * d * op->n_kv > FD_BOUND_MANY)
    for (int64_t item = 0; item < (int64_t)op->n_pos * n_head; item++) {
        int64_t n = op->pos0 + item / n_head + 1, kv_head = kv_head_of(item % n_head, n_head, n_head_kv);
        const double *p = work->in[0] + item * op->n_kv, *e_p = work->e[0] + item * op->n_kv;
        double lambda = fd_bound_lambda_of(work, n), u_sum = fmax(c->u_acc, c->u_mix);
        double typical = fd_bound_typical_chain(work, u_sum, n),
               u_chain = c->typical ? 0 : lambda * u_sum * sqrt((double)n);
        double u_mean = c->in_truncates ? 2 * c->u_attn : 0, u_rescaled = c->typical ? 0 : 2 * c->u_mix;
        for (int32_t first = 0; first < d; first += COLUMNS) {
            double sum[COLUMNS] = {0}, square[COLUMNS] = {0};
            int32_t n_i = d - first < COLUMNS ? d - first : COLUMNS;
            for (int64_t t = 0; t < n; t++) {
                int64_t at = (t * n_head_kv + kv_head) * d + first;
                add_value(p[t], e_p[t], typical * typical * p[t] * p[t], work->in[1] + at, work->e[1] + at, n_i, sum,
                          square);
            }
            for (int32_t i = 0; i < n_i; i++) {
                int64_t at = item * d + first + i;
                work->tau[at] = (u_chain + 2 * work->inside->u_op + u_rescaled) * sum[i] + lambda * sqrt(square[i]) +
                                (u_mean + typical + (c->typical ? c->u_mix : 0)) * fabs(work->y[at]);
            }
        }
    }
}

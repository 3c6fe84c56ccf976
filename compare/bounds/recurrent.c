/* MUL, MUL_VECTOR, EXP, L2_NORM, TOKEN_SHIFT, GATED_DELTA, WKV7: what linear attention adds. The rounding of the output
 * is added by fd_bound; u is the class's.
 *
 * A state that is corrected by what it reads carries its errors E on by a matrix M: bounds of single elements would
 * double with every position, where M shrinks vectors. So the error of a row of the state is bounded by its length:
 * |E'| ≤ ‖M‖·|E| + the lengths of this position's own errors, and what a vector q reads of it by |q|·|E|
 * (Cauchy–Schwarz). */
#include <stdlib.h>

#include "compare/bounds/internal.h"
#include "model/weight_rows.h"

void fd_bound_mul(const fd_bound_work *work) {
    int64_t each = work->stride / fd_node_width(&work->op->graph->nodes[work->node->input[1]]);
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++) {
        double a = fabs(work->in[0][i]), b = fabs(work->in[1][i / each]), e_b = work->e[1][i / each];
        work->tau[i] = (b + e_b) * work->e[0][i] + a * e_b;
    }
}

/* One product of a vector that an engine may hold in the type of its tensors. */
void fd_bound_mul_vector(const fd_bound_work *work) {
    const fd_weight *w = work->op->weight[0];
    int64_t n = w->n_col;
    fd_dequantize_row(w->dtype, w->data, work->row, n);
    for (int64_t i = 0; i < work->op->n_pos * n; i++)
        work->tau[i] = fabs((double)work->row[i % n]) * work->e[0][i] + work->c->u_op * fabs(work->y[i]);
}

/* The exponential is off by u·(4 + 3|x|) of it, and by e^error − 1. */
void fd_bound_exp(const fd_bound_work *work) {
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++)
        work->tau[i] = fabs(work->y[i]) * (expm1(work->e[0][i]) + work->c->u_op * (4 + 3 * fabs(work->in[0][i]))) +
                       work->c->tiny_out;
}

/* As RMS_NORM's without a weight. */
void fd_bound_l2_norm(const fd_bound_work *work) {
    int64_t n = work->node->shape[work->node->n_dim - 1];
    double lambda = fd_bound_lambda_of(work, n), u = work->c->u_op;
    double chain = lambda * sqrt((double)n) * fmin(u, 0x1p-24);
    for (int64_t row = 0; row < work->op->n_pos * work->stride / n; row++) {
        const double *x = work->in[0] + row * n, *e = work->e[0] + row * n;
        double squares = (double)work->node->eps, errors = 0;
        for (int64_t i = 0; i < n; i++) {
            squares += x[i] * x[i];
            errors += x[i] * x[i] * e[i] * e[i] + e[i] * e[i] * e[i] * e[i];
        }
        double r = 1 / sqrt(squares);
        double relative = chain / 2 + (errors > 0 ? lambda * sqrt(errors) / squares : 0) + 3 * u + 2 * 0x1p-53;
        for (int64_t i = 0; i < n; i++)
            work->tau[row * n + i] = fabs(work->y[row * n + i]) * relative + r * e[i] + work->c->tiny_out;
    }
}

/* before·w + own·(1 − w), computed as (before − own)·w + own. */
void fd_bound_token_shift(const fd_bound_work *work) {
    const fd_op_args *op = work->op;
    int64_t n = work->stride;
    fd_dequantize_row(op->weight[0]->dtype, op->weight[0]->data, work->row, n);
    for (int64_t i = 0; i < op->n_pos * n; i++) {
        int64_t t = op->pos0 + i / n, at = t * n + i % n;
        double w = (double)work->row[i % n], before = t > 0 ? work->in[0][at - n] : 0,
               e = t > 0 ? work->e[0][at - n] : 0;
        work->tau[i] = fabs(w) * e + fabs(1 - w) * work->e[0][at] +
                       work->c->u_op * 3 * fabs(w * (before - work->in[0][at])) + work->c->tiny_out;
    }
}

static double length_of(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* Roundings of a dot product of n terms, in units of |a|·|b|. */
static double dot_roundings(const fd_bound_work *work, int64_t n) {
    return work->c->u_op * (fmin((double)n, fd_bound_lambda_of(work, n) * sqrt((double)n)) + 2);
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* One column s of the state, of length |s| and off by E: M = e^g·(I − beta·k·kᵀ). */
static void delta_column(const fd_bound_work *work, int64_t item) {
    const fd_op_args *op = work->op;
    const fd_node *q_node = &op->graph->nodes[work->node->input[1]];
    int64_t n_key = q_node->shape[0], n = q_node->shape[1], dim = work->node->shape[1];
    int64_t r = work->node->shape[0] / n_key, of_key = 2 * r + n + r * dim, head = item / dim;
    double u = work->c->u_op, chain = dot_roundings(work, n), s[FD_MAX_STATE] = {0}, off = 0;
    for (int64_t t = 0; t < op->pos0 + op->n_pos; t++) {
        int64_t at = (t * n_key + head / r) * of_key;
        const double *row = work->in[0] + at, *e = work->e[0] + at, *k = row + 2 * r, *e_k = e + 2 * r;
        double g = row[head % r], beta = row[r + head % r], e_beta = e[r + head % r];
        double v = k[n + head % r * dim + item % dim], e_v = e_k[n + head % r * dim + item % dim], decay = exp(g);
        double before = length_of(s, n), of_k = length_of(k, n), of_e_k = length_of(e_k, n);
        double e_kept = before * decay * (expm1(e[head % r]) + u * (5 + 3 * fabs(g))) + off * decay;
        for (int64_t i = 0; i < n; i++) s[i] *= decay;
        double kept = before * decay, miss = v - dot(k, s, n);
        double e_miss = e_v + of_e_k * kept + chain * of_k * kept + u * fabs(miss);
        double correction = miss * beta;
        double e_correction = fabs(beta) * e_miss + fabs(miss) * e_beta + u * fabs(correction);
        for (int64_t i = 0; i < n; i++) s[i] += k[i] * correction;
        off = fmax(1, fabs(1 - beta * of_k * of_k)) * e_kept + of_k * e_correction + of_e_k * fabs(correction) +
              2 * u * (of_k * fabs(correction) + kept);
        if (t < op->pos0) continue;
        int64_t of_q = ((t - op->pos0) * n_key + head / r) * n;
        double q = length_of(work->in[1] + of_q, n), e_q = length_of(work->e[1] + of_q, n), after = length_of(s, n);
        work->tau[(t - op->pos0) * work->stride + item] =
            (double)work->node->scale * (q * off + e_q * (after + off) + (chain + 2 * u) * q * after) +
            work->c->tiny_out;
    }
}

void fd_bound_gated_delta(const fd_bound_work *work) {
#pragma omp parallel for
    for (int64_t item = 0; item < work->stride; item++) delta_column(work, item);
}

/* ‖M‖ of rows s·M with M = diag(w) + a·bᵀ, by powers of M·Mᵀ from a start that has a part of every element. */
static double norm_of_step(const double *w, const double *a, const double *b, int64_t n) {
    enum { N_STEP = 12 };
    double x[FD_MAX_STATE], largest = 0;
    for (int64_t i = 0; i < n; i++) x[i] = fabs(a[i]) + 0.1;
    for (int step = 0; step < N_STEP; step++) {
        double length = length_of(x, n), of_a = 0, of_b = 0;
        for (int64_t i = 0; i < n; i++) x[i] /= length;
        of_a = dot(x, a, n);
        for (int64_t i = 0; i < n; i++) x[i] = x[i] * w[i] + of_a * b[i]; /* x·M */
        largest = length_of(x, n);
        if (!(largest > 0)) return 0;
        of_b = dot(x, b, n);
        for (int64_t i = 0; i < n; i++) x[i] = x[i] * w[i] + of_b * a[i]; /* then ·Mᵀ */
    }
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(w[i] + a[i] * b[i]));
    return largest * 1.001;
}

/* All rows s of a head's state: M is theirs together. */
static void wkv_head(const fd_bound_work *work, int64_t head) {
    const fd_op_args *op = work->op;
    int64_t n_head = work->node->shape[0], n = work->node->shape[1];
    double u = work->c->u_op, chain = dot_roundings(work, n), off[FD_MAX_STATE] = {0};
    double *state = calloc((size_t)(n * n), sizeof *state);
    for (int64_t i = 0; !state && i < op->n_pos * n; i++) /* out of memory: nothing is known */
        work->tau[(i / n * n_head + head) * n + i % n] = FD_BOUND_UNKNOWN;
    for (int64_t t = 0; state && t < op->pos0 + op->n_pos; t++) {
        int64_t at = (t * n_head + head) * 5 * n, of_r = ((t - op->pos0) * n_head + head) * n;
        const double *w = work->in[0] + at, *k = w + n, *v = w + 2 * n, *a = w + 3 * n, *b = w + 4 * n;
        const double *e_w = work->e[0] + at, *e_v = e_w + 2 * n;
        double of_a = length_of(a, n), of_b = length_of(b, n), of_k = length_of(k, n), step = norm_of_step(w, a, b, n);
        double e_k = length_of(e_w + n, n), e_a = length_of(e_w + 3 * n, n), e_b = length_of(e_w + 4 * n, n), most = 0;
        for (int64_t i = 0; i < n; i++) most = fmax(most, e_w[i]);
        for (int64_t i = 0; i < n; i++) {
            double *s = state + i * n, before = length_of(s, n), read = dot(a, s, n), vk = fabs(v[i]) * of_k;
            double e_read = e_a * before + chain * of_a * before;
            for (int64_t j = 0; j < n; j++) s[j] = s[j] * w[j] + v[i] * k[j] + read * b[j];
            off[i] = step * off[i] + most * before + of_b * e_read + fabs(read) * e_b + e_v[i] * of_k +
                     fabs(v[i]) * e_k + 4 * u * (before + vk + fabs(read) * of_b);
            if (t < op->pos0) continue;
            double r = length_of(work->in[1] + of_r, n), e_r = length_of(work->e[1] + of_r, n), after = length_of(s, n);
            work->tau[of_r + i] = r * off[i] + e_r * (after + off[i]) + chain * r * after + work->c->tiny_out;
        }
    }
    free(state);
}

void fd_bound_wkv7(const fd_bound_work *work) {
#pragma omp parallel for
    for (int64_t head = 0; head < work->node->shape[0]; head++) wkv_head(work, head);
}

/* LAYER_NORM, ADD_POSITION, ADD_VECTOR, ATTN_ALIBI, ATTN_TEMPERATURE. The rounding of the output is added by
 * fd_bound. */
#include "compare/bounds/internal.h"
#include "model/weight_rows.h"

/* y = c·r·w + b with c = x − mean. The mean's chain costs at most λ·u·√n of Σ|x| / n (binary32 in every engine), errors
 * of x λ·√Σe² / n; c is off by that, by e and by one rounding. r as in RMS_NORM, with c for x. Then three roundings of
 * the product and one spare; the sum's is the output's. */
void fd_bound_layer_norm(const fd_bound_work *work) {
    const fd_op_args *op = work->op;
    const fd_weight *weight = op->weight[0], *bias = op->weight[1];
    int64_t n = work->node->shape[work->node->n_dim - 1], n_row = op->n_pos * work->stride / n;
    double lambda = fd_bound_lambda_of(work, n), u = work->c->u_op, u_sum = fmin(u, 0x1p-24);
    double chain = lambda * sqrt((double)n) * u_sum;
    for (int64_t row = 0; row < n_row; row++) {
        const double *x = work->in[0] + row * n, *e = work->e[0] + row * n;
        double *tau = work->tau + row * n, sum = 0, size = 0, errors = 0, squares = 0, crossed = 0;
        for (int64_t i = 0; i < n; i++) sum += x[i], size += fabs(x[i]), errors += e[i] * e[i];
        double mean = sum / (double)n, e_mean = chain * size / (double)n + lambda * sqrt(errors) / (double)n;
        for (int64_t i = 0; i < n; i++) {
            double c = x[i] - mean;
            tau[i] = e[i] + e_mean + u_sum * fabs(c); /* of c */
            squares += c * c;
            crossed += c * c * tau[i] * tau[i] + tau[i] * tau[i] * tau[i] * tau[i];
        }
        double whole = squares + (double)n * (double)work->node->eps, r = 1 / sqrt(whole / (double)n);
        double relative = chain / 2 + (crossed > 0 ? lambda * sqrt(crossed) / whole : 0) + 4 * u + 2 * 0x1p-53;
        if (weight) fd_weight_row(weight, row % weight->n_row, work->row);
        for (int64_t i = 0; i < n; i++) {
            double w = weight ? fabs((double)work->row[i]) : 1;
            tau[i] = w * (fabs(x[i] - mean) * r * relative + r * tau[i] + work->c->tiny_out);
        }
        if (bias) fd_weight_row(bias, row % bias->n_row, work->row);
        for (int64_t i = 0; bias && i < n; i++) tau[i] += u * fabs((double)work->row[i]) + work->c->tiny_out;
    }
}

/* One addition, whose rounding is the output's, of a row that an engine may hold in the type of its tensors. */
static void bound_add_row(const fd_bound_work *work, bool by_position) {
    const fd_weight *w = work->op->weight[0];
    int64_t n = w->n_col;
    for (int64_t p = 0; p < work->op->n_pos; p++) {
        int64_t at = by_position ? work->op->pos0 + p : 0;
        if (at < w->n_row) fd_weight_row(w, at, work->row);
        for (int64_t i = 0; i < n; i++)
            work->tau[p * n + i] = work->e[0][p * n + i] + work->c->u_op * fabs((double)work->row[i]);
    }
}

void fd_bound_add_position(const fd_bound_work *work) {
    bound_add_row(work, true);
}

void fd_bound_add_vector(const fd_bound_work *work) {
    bound_add_row(work, false);
}

/* s + slope·distance: a slope that is a power in binary32 is off by four roundings, the product by one. */
void fd_bound_attn_alibi(const fd_bound_work *work) {
    int32_t n_head = work->node->shape[0], n_kv = work->op->n_kv;
    for (int64_t item = 0; item < (int64_t)work->op->n_pos * n_head; item++) {
        int64_t own = work->op->pos0 + item / n_head;
        double slope = fd_alibi_slope(work->node->max_bias, n_head, (int32_t)(item % n_head));
        for (int64_t t = 0; t <= own && t < n_kv; t++) {
            int64_t i = item * n_kv + t;
            work->tau[i] = work->e[0][i] + 5 * work->c->u_op * slope * (double)(own - t);
        }
    }
}

/* x·factor: a logarithm, a product and a sum of positive terms, and the factor's own type. */
void fd_bound_attn_temperature(const fd_bound_work *work) {
    int64_t n = work->stride;
    for (int64_t p = 0; p < work->op->n_pos; p++) {
        double factor = fd_node_temperature(work->node, work->op->pos0 + p);
        for (int64_t i = p * n; i < (p + 1) * n; i++)
            work->tau[i] = fabs(factor) * work->e[0][i] + 6 * work->c->u_op * fabs(work->y[i]);
    }
}

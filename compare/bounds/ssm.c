/* SILU, SOFTPLUS, CONV, SSM_SCAN. Engines keep these layers' sums and states in binary32 or better; u is the class's. */
#include "compare/bounds/internal.h"
#include "model/weight_rows.h"

/* x·σ(x): as SILU_MUL; |d silu/dx| ≤ 1.1. */
void fd_bound_silu(const fd_bound_work *work) {
    double u = work->c->u_op;
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++) {
        double x = work->in[0][i], other = 1 / (1 + exp(x));
        double roundings = u * (4 + (4 + 3 * fabs(x)) * other);
        if (x < -88 && u >= 0x1p-24) roundings = 1;
        work->tau[i] = fabs(work->y[i]) * roundings + fabs(x) * fd_bound_half_of_sigmoid(u) + 1.1 * work->e[0][i] +
                       work->c->tiny_out;
    }
}

/* ln(1 + e^x): the exponential is off by u·(4 + 3|x|) of it, its sum with 1 by u, the logarithm by 2u of itself; an
 * error of 1 + e^x is one of the logarithm by as much of 1. Fast math's logarithm is off by up to 2⁻²¹ of 1 near 1 (CUDA C++ Programming
 * Guide). The slope is σ(x). */
void fd_bound_softplus(const fd_bound_work *work) {
    double u = work->c->u_op, near_one = work->c->fast_math ? 0x1p-21 : u;
    for (int64_t i = 0; i < work->op->n_pos * work->stride; i++) {
        double x = work->in[0][i], share = 1 / (1 + exp(-x));
        work->tau[i] =
            share * (work->e[0][i] + u * (4 + 3 * fabs(x))) + near_one + 2 * u * fabs(work->y[i]) + work->c->tiny_out;
    }
}

/* A sum of few products: each is rounded, and every partial sum. */
void fd_bound_conv(const fd_bound_work *work) {
    const fd_op_args *op = work->op;
    const fd_weight *w = op->weight[0], *bias = op->weight[1];
    int64_t n = work->stride, n_tap = w->n_col;
    double u = work->c->u_op;
    for (int64_t row = 0; row < op->n_pos; row++)
        for (int64_t c = 0; c < n; c++) {
            double size = bias ? fabs((double)fd_weight_element(bias, c)) : 0, off = 0;
            for (int64_t j = 0; j < n_tap; j++) {
                int64_t t = op->pos0 + row + j + 1 - n_tap;
                if (t < 0) continue;
                double a = fabs((double)fd_weight_row_element(w, c, j));
                size += a * fabs(work->in[0][t * n + c]);
                off += a * work->e[0][t * n + c];
            }
            work->tau[row * n + c] = off + u * (double)(n_tap + 3) * size + work->c->tiny_out;
        }
}

/* One channel's state and what it is off by, position by position: the decay e^(A dt) is off by |A|·e_dt + u·(4 + 3|A dt|)
 * of it, what is added by its factors' errors and three roundings, the state by two more. */
static void scan(const fd_bound_work *work, int64_t channel) {
    const fd_op_args *op = work->op;
    const fd_node *node = work->node, *read = &op->graph->nodes[node->input[1]];
    const fd_weight *a = op->weight[0], *d = op->weight[1];
    int64_t n_head = node->shape[0], n_dim = node->shape[1], n_state = read->shape[1], n_b = fd_node_width(read);
    int64_t n_channel = n_head * n_dim, width = n_head + n_channel + n_b, head = channel / n_dim;
    int64_t of_b = head / (n_head / read->shape[0]) * n_state;
    double u = work->c->u_op, h[FD_MAX_STATE] = {0}, off[FD_MAX_STATE] = {0};
    double skip = fabs((double)(d->n_row == 1 ? fd_weight_element(d, head) : fd_weight_row_element(d, head, 0)));
    for (int64_t t = 0; t < op->pos0 + op->n_pos; t++) {
        const double *row = work->in[0] + t * width, *e = work->e[0] + t * width;
        double dt = row[head], x = row[n_head + channel], e_dt = e[head], e_x = e[n_head + channel], sum = 0, size = 0;
        for (int64_t s = 0; s < n_state; s++) {
            double A = fabs((double)fd_weight_row_element(a, head, a->n_col > 1 ? s : 0)), decay = exp(-A * dt);
            double b = row[n_head + n_channel + of_b + s], e_b = e[n_head + n_channel + of_b + s], in = x * dt * b;
            double e_in = fabs(dt * b) * e_x + fabs(x * b) * e_dt + fabs(x * dt) * e_b + 3 * u * fabs(in);
            double kept = fabs(h[s]) * decay;
            off[s] = off[s] * decay + kept * (A * e_dt + u * (4 + 3 * A * fabs(dt))) + e_in + 2 * u * (kept + fabs(in));
            h[s] = h[s] * decay + in;
            if (t < op->pos0) continue;
            int64_t at = (t - op->pos0) * n_b + of_b + s;
            sum += fabs(work->in[1][at]) * off[s] + fabs(h[s]) * work->e[1][at];
            size += fabs(work->in[1][at] * h[s]);
        }
        if (t >= op->pos0)
            work->tau[(t - op->pos0) * n_channel + channel] =
                sum + skip * e_x + u * ((double)(n_state + 2) * size + 2 * skip * fabs(x)) + work->c->tiny_out;
    }
}

void fd_bound_ssm_scan(const fd_bound_work *work) {
#pragma omp parallel for
    for (int64_t channel = 0; channel < work->stride; channel++) scan(work, channel);
}

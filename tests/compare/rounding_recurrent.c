#include "tests/compare/rounding_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void rounding_conv(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    const fd_weight *w = a->weight[0];
    int64_t n = w->n_row, n_tap = w->n_col;
    for (int64_t i = 0; i < a->n_pos * n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < n_tap; j++) {
            int64_t t = a->pos0 + i / n + j + 1 - n_tap;
            if (t >= 0)
                sum = round_to(sum + round_to(((const float *)w->data)[i % n * n_tap + j] *
                                                  ((const double *)a->in[0])[t * n + i % n],
                                              c->u_op),
                               c->u_op);
        }
        out[i] = round_to(round_to(sum + ((const float *)a->weight[1]->data)[i % n], c->u_op), c->u_out);
    }
}

void rounding_scan(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    const fd_node *read = &a->graph->nodes[1];
    const float *A = a->weight[0]->data, *d = a->weight[1]->data;
    int64_t n_head = a->node->shape[0], n_dim = a->node->shape[1], n_state = read->shape[1], n_group = read->shape[0];
    int64_t n = n_head * n_dim, width = n_head + n + n_group * n_state;
    double u = rounding_kernel_u(c), h[64];
    for (int64_t ch = 0; ch < n; ch++) {
        int64_t head = ch / n_dim, group = head / (n_head / n_group);
        for (int64_t s = 0; s < n_state; s++) h[s] = 0;
        for (int64_t t = 0; t < a->pos0 + a->n_pos; t++) {
            const double *row = (const double *)a->in[0] + t * width, *b = row + n_head + n + group * n_state;
            double x_dt = round_to(row[n_head + ch] * row[head], u), y = 0;
            for (int64_t s = 0; s < n_state; s++) {
                double decay =
                    round_to(exp(round_to(A[a->weight[0]->n_col > 1 ? head * n_state + s : head] * row[head], u)), u);
                h[s] = round_to(round_to(h[s] * decay, u) + round_to(b[s] * x_dt, u), u);
                if (t >= a->pos0)
                    y = round_to(
                        y + round_to(h[s] * ((const double *)a->in[1])[((t - a->pos0) * n_group + group) * n_state + s],
                                     u),
                        u);
            }
            if (t >= a->pos0)
                out[(t - a->pos0) * n + ch] =
                    round_to(round_to(y + round_to(row[n_head + ch] * d[head], u), u), c->u_out);
        }
    }
}

void rounding_token_shift(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    const float *w = a->weight[0]->data;
    int64_t n = a->weight[0]->n_col;
    for (int64_t i = 0; i < a->n_pos * n; i++) {
        int64_t at = a->pos0 * n + i;
        double own = ((const double *)a->in[0])[at], before = at >= n ? ((const double *)a->in[0])[at - n] : 0;
        double part = round_to(round_to(before - own, c->u_op) * w[i % n], c->u_op);
        out[i] = round_to(own + part, c->u_out);
    }
}

void rounding_delta(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    const fd_node *q = &a->graph->nodes[1];
    int64_t n_key = q->shape[0], n = q->shape[1], dim = a->node->shape[1], r = a->node->shape[0] / n_key;
    int64_t n_out = fd_node_width(a->node);
    double u = rounding_kernel_u(c);
    for (int64_t item = 0; item < n_out; item++) {
        int64_t head = item / dim, at = head % r;
        double s[64] = {0};
        for (int64_t t = 0; t < a->pos0 + a->n_pos; t++) {
            const double *row = (const double *)a->in[0] + (t * n_key + head / r) * (2 * r + n + r * dim),
                         *k = row + 2 * r;
            double decay = round_to(exp(row[at]), u);
            for (int64_t i = 0; i < n; i++) s[i] = round_to(s[i] * decay, u);
            double miss = round_to(k[n + at * dim + item % dim] - rounding_dot(s, k, n, u), u);
            double correction = round_to(miss * row[r + at], u);
            for (int64_t i = 0; i < n; i++) s[i] = round_to(s[i] + round_to(k[i] * correction, u), u);
            if (t < a->pos0) continue;
            double y = rounding_dot(s, (const double *)a->in[1] + ((t - a->pos0) * n_key + head / r) * n, n, u);
            out[(t - a->pos0) * n_out + item] = round_to(round_to(y * (double)a->node->scale, u), c->u_out);
        }
    }
}

void rounding_wkv(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int64_t n_head = a->node->shape[0], n = a->node->shape[1], n_out = n_head * n;
    double u = rounding_kernel_u(c);
    for (int64_t item = 0; item < n_out; item++) {
        double s[64] = {0};
        for (int64_t t = 0; t < a->pos0 + a->n_pos; t++) {
            const double *w = (const double *)a->in[0] + (t * n_head + item / n) * 5 * n;
            double v = w[2 * n + item % n], read = rounding_dot(w + 3 * n, s, n, u);
            for (int64_t i = 0; i < n; i++) {
                double kept = round_to(round_to(s[i] * w[i], u) + round_to(v * w[n + i], u), u);
                s[i] = round_to(kept + round_to(read * w[4 * n + i], u), u);
            }
            if (t >= a->pos0)
                out[(t - a->pos0) * n_out + item] = round_to(
                    rounding_dot(s, (const double *)a->in[1] + (t - a->pos0) * n_out + item / n * n, n, u), c->u_out);
        }
    }
}

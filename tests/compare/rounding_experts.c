#include "tests/compare/rounding_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void rounding_softmax_of(const double *x, double *out, int64_t n, const fd_numerics_class *c) {
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) max = fmax(max, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum = round_to(sum + round_to(exp(round_to(x[i] - max, c->u_op)), c->u_op), rounding_kernel_u(c));
    for (int64_t i = 0; i < n; i++)
        out[i] = round_to(round_to(exp(round_to(x[i] - max, c->u_op)), c->u_op) / sum, c->u_out);
}

void rounding_top_k(const fd_op_args *a, double *out) {
    int32_t n = a->graph->nodes[0].shape[0], k = a->node->shape[0];
    for (int32_t row = 0; row < a->n_pos; row++) {
        double *id = out + row * k;
        const double *x = (const double *)a->in[0] + row * n;
        for (int32_t r = 0; r < k; r++) {
            id[r] = -1;
            for (int32_t i = 0; i < n; i++) {
                bool taken = false;
                for (int32_t m = 0; m < r; m++) taken = taken || id[m] == i;
                if (!taken && (id[r] < 0 || x[i] > x[(int32_t)id[r]])) id[r] = i;
            }
        }
    }
}

void rounding_expert_weights(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int32_t n = a->graph->nodes[0].shape[0], k = a->node->shape[0];
    for (int32_t row = 0; row < a->n_pos; row++) {
        double chosen[8], *w = out + row * k, sum = 0;
        for (int32_t r = 0; r < k; r++)
            chosen[r] = ((const double *)a->in[0])[row * n + (int32_t)((const double *)a->in[1])[row * k + r]];
        for (int32_t r = 0; r < k; r++) sum = round_to(sum + chosen[r], c->u_op);
        if (a->node->gating == FD_GATING_SOFTMAX) rounding_softmax_of(chosen, w, k, c);
        for (int32_t r = 0; r < k; r++) {
            if (a->node->gating == FD_GATING_NORMALISED) w[r] = round_to(chosen[r] / sum, c->u_out);
            if (a->node->gating == FD_GATING_GATHER) w[r] = chosen[r];
            w[r] = round_to(w[r] * (double)a->node->scale, c->u_out);
        }
    }
}

void rounding_expert_matmul(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int64_t n = a->weight[0]->n_col, k = a->node->shape[0], n_out = a->node->shape[1];
    bool own_rows = a->graph->nodes[0].n_dim == 2;
    for (int64_t item = 0; item < a->n_pos * k; item++) {
        int64_t expert = (int64_t)((const double *)a->in[1])[item];
        fd_weight w = *a->weight[0], b = a->weight[1] ? *a->weight[1] : (fd_weight){0};
        w.n_row = n_out;
        w.data = (const char *)w.data + expert * n_out * fd_dtype_row_bytes(w.dtype, n);
        if (a->weight[1]) b.data = (const char *)b.data + expert * fd_dtype_row_bytes(b.dtype, n_out);
        fd_op_args one = *a;
        one.n_pos = 1;
        one.weight[0] = &w;
        one.weight[1] = a->weight[1] ? &b : NULL;
        one.in[0] = (const double *)a->in[0] + (own_rows ? item : item / k) * n;
        rounding_matmul(&one, c, out + item * n_out);
    }
}

void rounding_expert_sum(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int64_t n = a->node->shape[0], k = a->graph->nodes[1].shape[0];
    for (int64_t i = 0; i < a->n_pos * n; i++) {
        int64_t row = i / n;
        double sum = 0;
        for (int64_t r = 0; r < k; r++) {
            double x = ((const double *)a->in[0])[(row * k + r) * n + i % n],
                   w = ((const double *)a->in[1])[row * k + r];
            sum = round_to(sum + round_to(w * x, c->u_op), c->u_op);
        }
        out[i] = round_to(sum, c->u_out);
    }
}

void rounding_head_matmul(const fd_op_args *a, const fd_numerics_class *c, double *out) {
    int64_t n = a->weight[0]->n_col, n_head = a->node->shape[0], n_out = a->node->shape[1];
    for (int64_t item = 0; item < a->n_pos * n_head; item++) {
        fd_weight w = *a->weight[0];
        w.n_row = n_out;
        w.data = (const char *)w.data + item % n_head * n_out * fd_dtype_row_bytes(w.dtype, n);
        fd_op_args one = *a;
        one.n_pos = 1;
        one.weight[0] = &w;
        one.in[0] = (const double *)a->in[0] + item * n;
        rounding_matmul(&one, c, out + item * n_out);
    }
}

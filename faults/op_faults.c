/* Ops as the faulty engines compute them, on host memory in binary32. Written like the engine that had the bug, apart from
 * reference_cpu, whose indexing they must not share. */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>

#include "model/quant.h"
#include "numerics/contract.h"

/* y = x / (sqrt(mean(x²)) + eps) · w */
void fd_fault_norm_eps_outside(const fd_op_args *args) {
    const fd_node *node = args->node;
    const fd_weight *weight = args->weight[0];
    int64_t n = fd_node_elements(node, args->n_kv);
    float *w = malloc(sizeof *w * (size_t)n);
    for (int32_t r = 0; r < args->n_pos; r++) {
        const float *x = (const float *)args->in[0] + r * n;
        float *y = (float *)args->out + r * n;
        float scale = w ? 1.0f / (sqrtf(fd_dot(x, x, n) / (float)n) + node->eps) : NAN;
        if (w) fd_dequantize_row(weight->dtype, weight->data, w, n);
        for (int64_t i = 0; i < n; i++) y[i] = w ? x[i] * scale * w[i] : NAN;
    }
    free(w);
}

/* The row of position p sees positions before p alone: at p = 0 that is none, max is -inf and -inf - -inf is NaN. */
void fd_fault_softmax_all_masked(const fd_op_args *args) {
    int32_t n_head = args->node->shape[0], n_kv = args->n_kv;
    for (int32_t r = 0; r < args->n_pos; r++) {
        int32_t own = args->pos0 + r;
        for (int32_t h = 0; h < n_head; h++) {
            const float *s = (const float *)args->in[0] + ((int64_t)r * n_head + h) * n_kv;
            float *w = (float *)args->out + ((int64_t)r * n_head + h) * n_kv;
            float max = -INFINITY;
            for (int32_t t = 0; t < own; t++) max = fmaxf(max, s[t]);
            for (int32_t t = 0; t < n_kv; t++) w[t] = t > own ? 0.0f : fd_exp32((t < own ? s[t] : -INFINITY) - max);
            float sum = fd_sum(w, own + 1);
            for (int32_t t = 0; t <= own; t++) w[t] = w[t] / sum;
        }
    }
}

/* worker-orcd kept Q in per-thread registers: each thread multiplied the q it had loaded itself, element 0 for all. */
void fd_fault_scores_q0_only(const fd_op_args *args) {
    const fd_node *node = args->node;
    const fd_node *q_node = &args->graph->nodes[node->input[0]], *k_node = &args->graph->nodes[node->input[1]];
    int32_t n_head = q_node->shape[0], head_dim = q_node->shape[1], n_head_kv = k_node->shape[0], n_kv = args->n_kv;
    for (int32_t r = 0; r < args->n_pos; r++)
        for (int32_t h = 0; h < n_head; h++) {
            const float *q = (const float *)args->in[0] + ((int64_t)r * n_head + h) * head_dim;
            float *s = (float *)args->out + ((int64_t)r * n_head + h) * n_kv;
            for (int32_t t = 0; t < n_kv; t++) {
                const float *k = (const float *)args->in[1] + ((int64_t)t * n_head_kv + h / (n_head / n_head_kv)) * head_dim;
                s[t] = t > args->pos0 + r ? -INFINITY : q[0] * k[0] * node->scale;
            }
        }
}

/* MATMUL and EXPERT_MATMUL of `q8act`, where the weight is quantised: y[o] = Σ blocks of a·d·(integers' dot) [−
 * minimum], by numerics/q8act.h. Other weights go to the exact op. An item is an output row o, for all positions. */
#include "reference_cpu/q8act_blocks.h"
#include "reference_cpu/real.h"
#include "model/weight_rows.h"

void REF(matmul)(const fd_op_args *args, int64_t begin, int64_t end);
void REF(expert_matmul)(const fd_op_args *args, int64_t begin, int64_t end);
void REF(q8act_matmul)(const fd_op_args *args, int64_t begin, int64_t end);
void REF(q8act_expert_matmul)(const fd_op_args *args, int64_t begin, int64_t end);

static int32_t dot(const int8_t *w, const int8_t *x, int n) {
    int32_t s = 0;
    for (int i = 0; i < n; i++) s += w[i] * x[i];
    return s;
}

/* Row `row` of W times x. */
static float product(const fd_weight *weight, int64_t row, const float *x) {
    const char *data = (const char *)weight->data + row * fd_dtype_row_bytes(weight->dtype, weight->n_col);
    float partial[FD_Q8_PARTIALS] = {0};
    for (int64_t b = 0; b < weight->n_col / FD_Q8_BLOCK; b++) {
        fd_q8_w w;
        fd_q8_x q;
        fd_q8_weights(weight->dtype, data, b, &w);
        fd_q8_quantize(x + b * FD_Q8_BLOCK, &q);
        float acc = partial[b % FD_Q8_PARTIALS];
        if (fd_q8_has_halves(weight->dtype)) {
            acc = fd_q8_add(acc, dot(w.q, q.q, 16), w.a[0], q.d);
            acc = fd_q8_add(acc, dot(w.q + 16, q.q + 16, 16), w.a[1], q.d);
        } else {
            acc = fd_q8_add(acc, dot(w.q, q.q, 32), w.a[0], q.d);
        }
        if (fd_q8_has_minimum(weight->dtype)) acc = fd_q8_subtract(acc, w.b, q.sum);
        partial[b % FD_Q8_PARTIALS] = acc;
    }
    return partial[0] + partial[1];
}

void REF(q8act_matmul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    if (!fd_q8_takes(weight)) {
        REF(matmul)(args, begin, end);
        return;
    }
    for (int64_t o = begin; o < end; o++)
        for (int64_t row = 0; row < args->n_pos; row++) {
            float y = product(weight, o, (const float *)args->in[0] + row * weight->n_col);
            ((float *)args->out)[row * weight->n_row + o] = bias ? y + fd_weight_element(bias, o) : y;
        }
}

void REF(q8act_expert_matmul)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *input = fd_ref_input(args, 0);
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    int64_t n = weight->n_col, n_out = args->node->shape[1], k = args->node->shape[0];
    int64_t n_expert = weight->n_row / n_out, x_rows = input->n_dim == 2 ? input->shape[0] : 1;
    if (!fd_q8_takes(weight)) {
        REF(expert_matmul)(args, begin, end);
        return;
    }
    for (int64_t item = 0; item < args->n_pos * k; item++) {
        int64_t expert = fd_expert_of((double)((const float *)args->in[1])[item], n_expert);
        const float *x = (const float *)args->in[0] + (x_rows == 1 ? item / k : item) * n;
        float *y = (float *)args->out + item * n_out;
        for (int64_t o = begin; o < end; o++) {
            y[o] = expert < 0 ? (float)NAN : product(weight, expert * n_out + o, x);
            if (bias && expert >= 0) y[o] = y[o] + fd_weight_row_element(bias, expert, o);
        }
    }
}

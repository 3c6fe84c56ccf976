/* SOFTMAX, TOP_K, EXPERT_WEIGHTS, EXPERT_MATMUL, EXPERT_SUM. `T(…)`: rounded to the class's tensor type. */
#include "emulate/internal.h"
#include "emulate/rounding.h"

/* libm's exp, and one division for the row. */
static void softmax(const fd_emulate *e, const float *x, float *out, int64_t n) {
    float max = x[0];
    for (int64_t i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++) out[i] = expf(x[i] - max);
    float inverse = 1.0f / fd_emulate_sum(fd_emulate_order_of(e, FD_OP_SOFTMAX), out, n);
    for (int64_t i = 0; i < n; i++) out[i] = out[i] * inverse;
}

fd_code fd_emulate_softmax(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)err;
    int64_t n = args->node->shape[args->node->n_dim - 1];
    int64_t rows = args->n_pos * fd_node_row_stride(args->node, args->n_kv) / n;
    for (int64_t r = 0; r < rows; r++) softmax(e, (const float *)args->in[0] + r * n, (float *)args->out + r * n, n);
    return FD_OK;
}

/* Elements outside the groups with the largest sums of two elements become NaN, which is chosen last. */
static void close_groups(const fd_node *node, float *x, int32_t n) {
    int32_t each = n / node->n_group;
    float sum[FD_MAX_GROUPS];
    bool open[FD_MAX_GROUPS] = {false};
    for (int32_t g = 0; g < node->n_group; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int32_t i = g * each; i < (g + 1) * each; i++) {
            if (x[i] > second) second = x[i];
            if (second > first) second = first, first = x[i];
        }
        sum[g] = first + second;
    }
    for (int32_t r = 0; r < node->n_group_used; r++) {
        int32_t best = -1;
        for (int32_t g = 0; g < node->n_group; g++)
            if (!open[g] && (best < 0 || sum[g] > sum[best])) best = g;
        open[best] = true;
    }
    for (int32_t i = 0; i < n; i++)
        if (!open[i / each]) x[i] = (float)NAN;
}

/* The largest first, one after another; of equal ones the first. Rows without enough numbers end in NaN. */
fd_code fd_emulate_top_k(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    int32_t n = fd_emulate_input(args, 0)->shape[0], k = args->node->shape[0];
    float *left = fd_emulate_reserve(&e->left, sizeof(float) * (size_t)n, err);
    if (!left) return FD_ERR_MEMORY;
    for (int32_t p = 0; p < args->n_pos; p++) {
        const float *x = (const float *)args->in[0] + (int64_t)p * n;
        float *id = (float *)args->out + (int64_t)p * k;
        for (int32_t i = 0; i < n; i++) left[i] = x[i];
        if (args->node->n_group > 0) close_groups(args->node, left, n);
        for (int32_t r = 0; r < k; r++) {
            int32_t best = -1;
            for (int32_t i = 0; i < n; i++)
                if (left[i] == left[i] && (best < 0 || left[i] > left[best])) best = i;
            id[r] = best < 0 ? (float)NAN : (float)best;
            if (best >= 0) left[best] = (float)NAN;
        }
    }
    return FD_OK;
}

fd_code fd_emulate_expert_weights(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)err;
    int32_t n = fd_emulate_input(args, 0)->shape[0], k = args->node->shape[0];
    for (int32_t p = 0; p < args->n_pos; p++) {
        const float *x = (const float *)args->in[0] + (int64_t)p * n, *id = (const float *)args->in[1] + (int64_t)p * k;
        float *w = (float *)args->out + (int64_t)p * k;
        for (int32_t r = 0; r < k; r++) {
            int64_t expert = fd_expert_of(id[r], n);
            w[r] = expert < 0 ? (float)NAN : x[expert];
        }
        if (args->node->gating == FD_GATING_SOFTMAX) softmax(e, w, w, k);
        if (args->node->gating == FD_GATING_NORMALISED) {
            float sum = fd_emulate_sum(fd_emulate_order_of(e, FD_OP_EXPERT_WEIGHTS), w, k);
            for (int32_t r = 0; r < k; r++) w[r] = w[r] / sum;
        }
        for (int32_t r = 0; r < k; r++) w[r] = w[r] * args->node->scale;
    }
    return FD_OK;
}

/* One product of one position for each chosen expert, as MATMUL makes it. */
fd_code fd_emulate_expert_matmul(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    const fd_node *input = fd_emulate_input(args, 0);
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    int64_t n = weight->n_col, n_out = args->node->shape[1], k = args->node->shape[0];
    int64_t n_expert = weight->n_row / n_out;
    for (int64_t item = 0; item < args->n_pos * k; item++) {
        int64_t expert = fd_expert_of(((const float *)args->in[1])[item], n_expert);
        float *y = (float *)args->out + item * n_out;
        if (expert < 0) {
            for (int64_t o = 0; o < n_out; o++) y[o] = (float)NAN;
            continue;
        }
        fd_weight w = *weight, b = {0};
        w.n_row = n_out;
        w.data = (const char *)weight->data + expert * n_out * fd_dtype_row_bytes(weight->dtype, n);
        if (bias) {
            b = *bias;
            b.n_row = 1;
            b.data = (const char *)bias->data + expert * fd_dtype_row_bytes(bias->dtype, n_out);
        }
        fd_op_args one = *args;
        one.n_pos = 1;
        one.in[0] = (const float *)args->in[0] + (input->n_dim == 2 ? item : item / k) * n;
        one.weight[0] = &w;
        one.weight[1] = bias ? &b : NULL;
        one.out = y;
        FD_TRY(fd_emulate_matmul(e, &one, err));
    }
    return FD_OK;
}

/* T(w·x) of each expert, then T of each addition. */
fd_code fd_emulate_expert_sum(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)err;
    int64_t n = args->node->shape[0], k = fd_emulate_input(args, 1)->shape[0];
    fd_emulate_type type = e->class_.tensor;
    for (int32_t p = 0; p < args->n_pos; p++) {
        const float *w = (const float *)args->in[1] + p * k;
        for (int64_t i = 0; i < n; i++) {
            const float *x = (const float *)args->in[0] + p * k * n + i;
            float sum = fd_round_to(type, w[0] * x[0]);
            for (int64_t r = 1; r < k; r++) sum = fd_round_to(type, sum + fd_round_to(type, w[r] * x[r * n]));
            ((float *)args->out)[p * n + i] = sum;
        }
    }
    return FD_OK;
}

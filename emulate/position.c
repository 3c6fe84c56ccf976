/* LAYER_NORM, ADD_POSITION, ADD_VECTOR, MUL_VECTOR, ATTN_ALIBI, ATTN_TEMPERATURE. `T(…)`: rounded to the class's tensor
 * type. */
#include "emulate/internal.h"
#include "emulate/rounding.h"
#include "model/gguf/quant.h"

/* T(T(c·r)·w) + b with c = x − mean and r = 1 / sqrt(mean(c²) + eps), both means in binary32 in every class. */
fd_code fd_emulate_layer_norm(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    const fd_weight *weight = args->weight[0], *bias = args->weight[1];
    int64_t n = args->node->shape[args->node->n_dim - 1], rows = args->n_pos * fd_node_width(args->node) / n;
    int64_t n_w = weight ? weight->n_row * n : 0, n_b = bias ? bias->n_row * n : 0;
    const fd_emulate_order *order = fd_emulate_order_of(e, FD_OP_LAYER_NORM);
    float *w = fd_emulate_reserve(&e->left, sizeof(float) * (size_t)(n_w + n_b + 1), err);
    float *c = fd_emulate_reserve(&e->right, sizeof(float) * (size_t)n, err);
    if (!w || !c) return FD_ERR_MEMORY;
    if (weight) fd_emulate_vectors(e, weight, w);
    if (bias) fd_emulate_vectors(e, bias, w + n_w);
    for (int64_t p = 0; p < rows; p++) {
        const float *x = (const float *)args->in[0] + p * n;
        float *y = (float *)args->out + p * n;
        float mean = fd_emulate_sum(order, x, n) * (1.0f / (float)n);
        for (int64_t i = 0; i < n; i++) c[i] = x[i] - mean;
        float r = 1.0f / sqrtf(fd_emulate_dot(order, c, c, n) * (1.0f / (float)n) + args->node->eps);
        for (int64_t i = 0; i < n; i++) {
            y[i] = c[i] * r;
            if (weight) y[i] = fd_round_to(e->class_.tensor, y[i]) * w[p % weight->n_row * n + i];
            if (bias) y[i] = fd_round_to(e->class_.tensor, y[i]) + w[n_w + p % bias->n_row * n + i];
        }
    }
    return FD_OK;
}

/* x + T(row); a row that the table lacks makes NaN. */
static fd_code add_rows(fd_emulate *e, const fd_op_args *args, bool by_position, fd_error *err) {
    const fd_weight *w = args->weight[0];
    int64_t n = w->n_col, row_bytes = fd_dtype_row_bytes(w->dtype, n);
    float *row = fd_emulate_reserve(&e->left, sizeof(float) * (size_t)n, err);
    if (!row) return FD_ERR_MEMORY;
    for (int32_t p = 0; p < args->n_pos; p++) {
        int64_t at = by_position ? args->pos0 + p : 0;
        if (at < w->n_row) {
            fd_dequantize_row(w->dtype, (const char *)w->data + at * row_bytes, row, n);
            fd_round_row(e->class_.tensor, row, row, n);
        }
        for (int64_t i = 0; i < n; i++)
            ((float *)args->out)[p * n + i] = at < w->n_row ? ((const float *)args->in[0])[p * n + i] + row[i] : NAN;
    }
    return FD_OK;
}

fd_code fd_emulate_add_position(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    return add_rows(e, args, true, err);
}

fd_code fd_emulate_add_vector(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    return add_rows(e, args, false, err);
}

fd_code fd_emulate_mul_vector(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    int64_t n = args->weight[0]->n_col;
    float *w = fd_emulate_reserve(&e->left, sizeof(float) * (size_t)n, err);
    if (!w) return FD_ERR_MEMORY;
    fd_emulate_vector(e, args->weight[0], w);
    for (int64_t i = 0; i < args->n_pos * n; i++) ((float *)args->out)[i] = ((const float *)args->in[0])[i] * w[i % n];
    return FD_OK;
}

/* s + T(T(slope)·distance). */
fd_code fd_emulate_attn_alibi(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)err;
    int32_t n_head = args->node->shape[0], n_kv = args->n_kv;
    for (int64_t item = 0; item < (int64_t)args->n_pos * n_head; item++) {
        int64_t own = args->pos0 + item / n_head;
        float slope = (float)fd_alibi_slope(args->node->max_bias, n_head, (int32_t)(item % n_head));
        slope = fd_round_to(e->class_.tensor, slope);
        const float *score = (const float *)args->in[0] + item * n_kv;
        float *y = (float *)args->out + item * n_kv;
        for (int64_t t = 0; t < n_kv; t++)
            y[t] = t > own ? 0.0f : score[t] + fd_round_to(e->class_.tensor, slope * (float)(t - own));
    }
    return FD_OK;
}

/* The factor is made in binary32 and is a tensor of the class's type. */
fd_code fd_emulate_attn_temperature(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)err;
    int64_t n = fd_node_width(args->node);
    for (int32_t p = 0; p < args->n_pos; p++) {
        float turns = (float)((args->pos0 + p + args->node->first) / args->node->length);
        float factor = fd_round_to(e->class_.tensor, logf(turns + 1.0f) * args->node->scale + 1.0f);
        for (int64_t i = 0; i < n; i++)
            ((float *)args->out)[p * n + i] = ((const float *)args->in[0])[p * n + i] * factor;
    }
    return FD_OK;
}

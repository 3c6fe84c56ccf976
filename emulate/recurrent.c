/* TOKEN_SHIFT, GATED_DELTA, WKV7 in binary32, as every engine keeps the state; libm's exp, products and sums one by
 * one. */
#include <math.h>
#include <stdlib.h>

#include "emulate/internal.h"
#include "model/weight_rows.h"

fd_code fd_emulate_token_shift(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    int64_t n = fd_node_width(args->node);
    const float *x = args->in[0];
    float *w = fd_emulate_reserve(&e->left, sizeof(float) * (size_t)n, err);
    if (!w) return FD_ERR_MEMORY;
    fd_emulate_vector(e, args->weight[0], w);
    for (int32_t p = 0; p < args->n_pos; p++)
        for (int64_t i = 0; i < n; i++) {
            int64_t t = args->pos0 + p;
            float own = x[t * n + i], before = t > 0 ? x[(t - 1) * n + i] : 0;
            ((float *)args->out)[p * n + i] = fd_round_to(e->class_.tensor, (before - own) * w[i]) + own;
        }
    return FD_OK;
}

/* One position: the state decays, reads k, is corrected and is read. */
static float delta_step(float *s, const float *k, const float *q, int64_t n, float decay, float beta, float v) {
    float read = 0, y = 0;
    for (int64_t i = 0; i < n; i++) s[i] *= decay;
    for (int64_t i = 0; i < n; i++) read += s[i] * k[i];
    for (int64_t i = 0; i < n; i++) s[i] += k[i] * ((v - read) * beta);
    for (int64_t i = 0; q && i < n; i++) y += s[i] * q[i];
    return y;
}

fd_code fd_emulate_gated_delta(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)e, (void)err;
    const fd_node *q_node = fd_emulate_input(args, 1);
    int64_t n_key = q_node->shape[0], n = q_node->shape[1], dim = args->node->shape[1];
    int64_t r = args->node->shape[0] / n_key, of_key = 2 * r + n + r * dim, n_out = fd_node_width(args->node);
    for (int64_t item = 0; item < n_out; item++) {
        int64_t head = item / dim, group = head / r, of_head = head % r;
        float s[FD_MAX_STATE] = {0};
        for (int64_t t = 0; t < args->pos0 + args->n_pos; t++) {
            const float *row = (const float *)args->in[0] + (t * n_key + group) * of_key, *k = row + 2 * r;
            const float *q = (const float *)args->in[1] + ((t - args->pos0) * n_key + group) * n;
            float y = delta_step(s, k, t < args->pos0 ? NULL : q, n, expf(row[of_head]), row[r + of_head],
                                 k[n + of_head * dim + item % dim]);
            if (t >= args->pos0) ((float *)args->out)[(t - args->pos0) * n_out + item] = y * args->node->scale;
        }
    }
    return FD_OK;
}

fd_code fd_emulate_wkv7(fd_emulate *e, const fd_op_args *args, fd_error *err) {
    (void)e, (void)err;
    int64_t n_head = args->node->shape[0], n = args->node->shape[1], n_out = n_head * n;
    for (int64_t item = 0; item < n_out; item++) {
        float s[FD_MAX_STATE] = {0};
        for (int64_t t = 0; t < args->pos0 + args->n_pos; t++) {
            const float *w = (const float *)args->in[0] + (t * n_head + item / n) * 5 * n;
            const float *k = w + n, *a = w + 3 * n, *b = w + 4 * n;
            float v = w[2 * n + item % n], read = 0, y = 0;
            for (int64_t i = 0; i < n; i++) read += a[i] * s[i];
            for (int64_t i = 0; i < n; i++) s[i] = s[i] * w[i] + v * k[i] + read * b[i];
            if (t < args->pos0) continue;
            const float *r = (const float *)args->in[1] + (t - args->pos0) * n_out + item / n * n;
            for (int64_t i = 0; i < n; i++) y += s[i] * r[i];
            ((float *)args->out)[(t - args->pos0) * n_out + item] = y;
        }
    }
    return FD_OK;
}

/* TOKEN_SHIFT, GATED_DELTA, WKV7: linear attention and its token shift, over the rows of a cache from position 0 on. */
#include "reference_cpu/real.h"
#include "model/weight_rows.h"

/* y = fma(x(p − 1) − x(p), w, x(p)); before position 0 there is 0. An item is an element of a row, for all
 * positions. */
void REF(token_shift)(const fd_op_args *args, int64_t begin, int64_t end) {
    const int64_t n = fd_node_width(args->node);
    const real *x = args->in[0];
    for (int64_t i = begin; i < end; i++) {
        const real w = (real)fd_weight_element(args->weight[0], i);
        for (int64_t row = 0; row < args->n_pos; row++) {
            const int64_t t = args->pos0 + row;
            const real own = x[t * n + i], before = t > 0 ? x[(t - 1) * n + i] : 0;
            ((real *)args->out)[row * n + i] = real_fma(before - own, w, own);
        }
    }
}

/* One column s of the state: s = e^g·s; s = fma(k, (v − k·s)·beta, s); y = (q·s)·scale, the dots of MATMUL. An
 * item is an element of a value head. A row of the cache: model/arch/qwen3next.c. */
void REF(gated_delta)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_node *q_node = fd_ref_input(args, 1);
    const int64_t n_key = q_node->shape[0], n = q_node->shape[1], dim = args->node->shape[1];
    const int64_t r = args->node->shape[0] / n_key, of_key = 2 * r + n + r * dim, n_out = fd_node_width(args->node);
    for (int64_t item = begin; item < end; item++) {
        const int64_t head = item / dim, group = head / r, of_head = head % r;
        real s[FD_MAX_STATE] = {0};
        for (int64_t t = 0; t < args->pos0 + args->n_pos; t++) {
            const real *row = (const real *)args->in[0] + (t * n_key + group) * of_key, *k = row + 2 * r;
            const real decay = real_exp(row[of_head]), beta = row[r + of_head];
            for (int64_t i = 0; i < n; i++) s[i] = s[i] * decay;
            const real correction = (k[n + of_head * dim + item % dim] - real_dot(k, s, n)) * beta;
            for (int64_t i = 0; i < n; i++) s[i] = real_fma(k[i], correction, s[i]);
            if (t < args->pos0) continue;
            const real *q = (const real *)args->in[1] + ((t - args->pos0) * n_key + group) * n;
            ((real *)args->out)[(t - args->pos0) * n_out + item] = real_dot(q, s, n) * (real)args->node->scale;
        }
    }
}

/* One row s of the state: c = a·s; s = fma(s, w, fma(c, b, v·k)); y = r·s. An item is an element of v. A
 * row of the cache: model/arch/rwkv7.c. */
void REF(wkv7)(const fd_op_args *args, int64_t begin, int64_t end) {
    const int64_t n_head = args->node->shape[0], n = args->node->shape[1], n_out = n_head * n;
    for (int64_t item = begin; item < end; item++) {
        real s[FD_MAX_STATE] = {0};
        for (int64_t t = 0; t < args->pos0 + args->n_pos; t++) {
            const real *w = (const real *)args->in[0] + (t * n_head + item / n) * 5 * n;
            const real *k = w + n, *a = w + 3 * n, *b = w + 4 * n, v = w[2 * n + item % n], read = real_dot(a, s, n);
            for (int64_t i = 0; i < n; i++) s[i] = real_fma(s[i], w[i], real_fma(read, b[i], v * k[i]));
            if (t < args->pos0) continue;
            const real *r = (const real *)args->in[1] + (t - args->pos0) * n_out + item / n * n;
            ((real *)args->out)[(t - args->pos0) * n_out + item] = real_dot(r, s, n);
        }
    }
}

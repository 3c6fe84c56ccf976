/* ADD_POSITION, ADD_VECTOR, MUL_VECTOR, ATTN_ALIBI, ATTN_TEMPERATURE: what a row is added or multiplied by without a
 * matrix, most of it by its position. */
#include "reference_cpu/real.h"
#include "model/weight_rows.h"

/* y = x + row of w; a row that the table lacks makes NaN. */
static void add_row(const fd_op_args *args, int64_t at_row, int64_t row) {
    const fd_weight *w = args->weight[0];
    const real *x = (const real *)args->in[0] + row * w->n_col;
    real *y = (real *)args->out + row * w->n_col;
    float piece[FD_PIECE];
    for (int64_t at = 0; at < w->n_col; at += FD_PIECE) {
        int64_t count = fd_piece_length(w->n_col, at);
        if (at_row < w->n_row) fd_weight_piece(w, at_row, at, piece);
        for (int64_t i = 0; i < count; i++) y[at + i] = at_row < w->n_row ? x[at + i] + (real)piece[i] : (real)NAN;
    }
}

/* An item is a position. */
void REF(add_position)(const fd_op_args *args, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) add_row(args, args->pos0 + row, row);
}

void REF(add_vector)(const fd_op_args *args, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) add_row(args, 0, row);
}

/* y = x·w. An item is a position. */
void REF(mul_vector)(const fd_op_args *args, int64_t begin, int64_t end) {
    const fd_weight *weight = args->weight[0];
    int64_t n = weight->n_col;
    float w[FD_PIECE];
    for (int64_t row = begin; row < end; row++)
        for (int64_t at = 0; at < n; at += FD_PIECE) {
            const real *x = (const real *)args->in[0] + row * n + at;
            fd_weight_piece(weight, 0, at, w);
            for (int64_t i = 0; i < fd_piece_length(n, at); i++)
                ((real *)args->out)[row * n + at + i] = x[i] * (real)w[i];
        }
}

/* s' = fma(slope, t − p, s) for positions t up to the row's own, p; 0 past it, where nothing reads. An item is a head
 * of a position. */
void REF(attn_alibi)(const fd_op_args *args, int64_t begin, int64_t end) {
    int32_t n_head = args->node->shape[0];
    for (int64_t item = begin; item < end; item++) {
        int64_t own = args->pos0 + item / n_head;
        real slope = (real)fd_alibi_slope(args->node->max_bias, n_head, (int32_t)(item % n_head));
        const real *score = (const real *)args->in[0] + item * args->n_kv;
        real *y = (real *)args->out + item * args->n_kv;
        for (int64_t t = 0; t < args->n_kv; t++) y[t] = t > own ? 0 : real_fma(slope, (real)(t - own), score[t]);
    }
}

/* y = x·temperature, which is rounded once. An item is a position. */
void REF(attn_temperature)(const fd_op_args *args, int64_t begin, int64_t end) {
    int64_t n = fd_node_width(args->node);
    for (int64_t row = begin; row < end; row++) {
        const real *x = (const real *)args->in[0] + row * n;
        real *y = (real *)args->out + row * n;
        real factor = (real)fd_node_temperature(args->node, args->pos0 + row);
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
    }
}

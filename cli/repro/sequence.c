/* What the tested elements of ops need that go over the positions from 0 on: convolutions, token shift, recurrent states. */
#include "cli/repro/internal.h"
#include "model/weight_rows.h"

/* x: the last taps' rows, oldest first; 0 before position 0. */
fd_code fd_repro_write_conv(fd_repro *r, fd_error *err) {
    enum { MOST = 64 };
    const fd_weight *w = fd_repro_weight(r, 0), *bias = fd_repro_weight(r, 1);
    int64_t width = fd_node_width(r->node), n_tap = w->n_col;
    double x[MOST * FD_MEASURE_VALUES] = {0}, b[FD_MEASURE_VALUES] = {0};
    if (n_tap > MOST) return fd_fail(err, FD_ERR_UNSUPPORTED, "--repro: a convolution of %lld taps", (long long)n_tap);
    for (int64_t j = 0; j < n_tap; j++) {
        int64_t pos = r->pos - (n_tap - 1) + j;
        for (int64_t i = 0; i < r->n && pos >= 0; i++) x[j * r->n + i] = r->in[0][pos * width + r->first + i];
    }
    for (int64_t i = 0; i < r->n && bias; i++) b[i] = (double)fd_weight_element(bias, r->first + i);
    fd_repro_add_size(r, "TAPS", (double)n_tap);
    FD_TRY(fd_repro_put_array(r, "x", x, n_tap, r->n, false, err));
    FD_TRY(fd_repro_put_array(r, "bias", b, 0, r->n, false, err));
    return fd_repro_put_weight(r, w, r->first, r->n, err);
}

fd_code fd_repro_write_token_shift(fd_repro *r, fd_error *err) {
    int64_t width = fd_node_width(r->node);
    double before[FD_MEASURE_VALUES] = {0}, w[FD_MEASURE_VALUES];
    for (int64_t i = 0; i < r->n; i++) {
        if (r->pos > 0) before[i] = r->in[0][(r->pos - 1) * width + r->first + i];
        w[i] = (double)fd_weight_element(fd_repro_weight(r, 0), r->first + i);
    }
    FD_TRY(fd_repro_put_array(r, "x", r->in[0] + r->pos * width + r->first, 0, r->n, false, err));
    FD_TRY(fd_repro_put_array(r, "before", before, 0, r->n, false, err));
    return fd_repro_put_array(r, "w", w, 0, r->n, false, err);
}

/* Columns of the rows of the first input, a row a position, as an array of T rows. */
static fd_code put_sequence(const fd_repro *r, const char *name, int64_t row_width, int64_t from, int64_t n,
                            fd_error *err) {
    const fd_repro_columns columns = {r->in[0], r->pos + 1, row_width, from, n};
    return fd_repro_put_columns(r, name, &columns, err);
}

/* A row of the cache: dt of each head, x of each channel, B of each group. */
fd_code fd_repro_write_ssm_scan(fd_repro *r, fd_error *err) {
    const fd_node *c_node = &r->graph->nodes[r->node->input[1]];
    const fd_weight *a = fd_repro_weight(r, 0), *d = fd_repro_weight(r, 1);
    int64_t n_head = r->node->shape[0], n_dim = r->node->shape[1], n_group = c_node->shape[0],
            n_state = c_node->shape[1];
    int64_t width = n_head + n_head * n_dim + n_group * n_state;
    double decay[FD_MAX_STATE];
    fd_repro_keep_part(r, n_dim);
    int64_t group = r->head / (n_head / n_group);
    for (int64_t s = 0; s < n_state; s++) decay[s] = (double)fd_weight_row_element(a, r->head, a->n_col > 1 ? s : 0);
    fd_repro_add_size(r, "T", r->pos + 1);
    fd_repro_add_size(r, "STATE", (double)n_state);
    fd_repro_add_size(r, "D",
                      (double)(d->n_row == 1 ? fd_weight_element(d, r->head) : fd_weight_row_element(d, r->head, 0)));
    FD_TRY(fd_repro_put_array(r, "a", decay, 0, n_state, false, err));
    FD_TRY(fd_repro_put_array(r, "c", r->in[1] + group * n_state, 0, n_state, false, err));
    FD_TRY(put_sequence(r, "dt", width, r->head, 1, err));
    FD_TRY(put_sequence(r, "x", width, n_head + r->first, r->n, err));
    return put_sequence(r, "b", width, n_head + n_head * n_dim + group * n_state, n_state, err);
}

/* A row of the cache, for each head of keys: log decay and beta of its value heads, k, v (model/arch/qwen3next.c). */
fd_code fd_repro_write_gated_delta(fd_repro *r, fd_error *err) {
    const fd_node *q_node = &r->graph->nodes[r->node->input[1]];
    int64_t n_key = q_node->shape[0], n = q_node->shape[1], dim = r->node->shape[1];
    int64_t each = r->node->shape[0] / n_key, of_key = 2 * each + n + each * dim;
    fd_repro_keep_part(r, dim);
    int64_t group = r->head / each, of_head = r->head % each, begin = group * of_key, width = n_key * of_key;
    fd_repro_add_size(r, "T", r->pos + 1);
    fd_repro_add_size(r, "STATE", (double)n);
    fd_repro_add_size(r, "SCALE", (double)r->node->scale);
    FD_TRY(fd_repro_put_array(r, "q", r->in[1] + group * n, 0, n, false, err));
    FD_TRY(put_sequence(r, "log_decay", width, begin + of_head, 1, err));
    FD_TRY(put_sequence(r, "beta", width, begin + each + of_head, 1, err));
    FD_TRY(put_sequence(r, "k", width, begin + 2 * each, n, err));
    return put_sequence(r, "v", width, begin + 2 * each + n + of_head * dim + r->offset, r->n, err);
}

/* A row of the cache, for each head: w, k, v, a, b (model/arch/rwkv7.c). */
fd_code fd_repro_write_wkv7(fd_repro *r, fd_error *err) {
    int64_t n = r->node->shape[1], width = r->node->shape[0] * 5 * n;
    fd_repro_keep_part(r, n);
    int64_t begin = r->head * 5 * n;
    fd_repro_add_size(r, "T", r->pos + 1);
    fd_repro_add_size(r, "STATE", (double)n);
    FD_TRY(fd_repro_put_array(r, "r", r->in[1] + r->head * n, 0, n, false, err));
    FD_TRY(put_sequence(r, "w", width, begin, n, err));
    FD_TRY(put_sequence(r, "k", width, begin + n, n, err));
    FD_TRY(put_sequence(r, "v", width, begin + 2 * n + r->offset, r->n, err));
    FD_TRY(put_sequence(r, "a", width, begin + 3 * n, n, err));
    return put_sequence(r, "b", width, begin + 4 * n, n, err);
}

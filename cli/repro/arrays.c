/* Which part of an op's inputs the tested elements need: norms, products, attention, and ops that go element by
 * element. */
#include <stdlib.h>
#include <string.h>

#include "cli/repro/internal.h"
#include "model/weight_rows.h"
#include "numerics/contract.h"

const fd_weight *fd_repro_weight(const fd_repro *r, int which) {
    int32_t at = r->node->weight[which];
    return at >= 0 ? &r->graph->weights[at] : NULL;
}

void fd_repro_keep_part(fd_repro *r, int64_t width) {
    const fd_measured_values *m = &r->verdict->measures.nodes[r->node->id].values;
    int64_t begin = m->worst / width * width, end = begin + width, last = r->first + r->n;
    if (r->first < begin) r->first = begin;
    if (last > end) last = end;
    r->n = last - r->first;
    r->head = begin / width;
    r->offset = r->first - begin;
}

fd_code fd_repro_put_weight(const fd_repro *r, const fd_weight *w, int64_t first, int64_t n_row, fd_error *err) {
    int64_t rows = n_row ? n_row : 1, bytes = fd_dtype_row_bytes(w->dtype, w->n_col);
    double *wide = malloc(sizeof *wide * (size_t)(rows * w->n_col));
    float *row = malloc(sizeof *row * (size_t)w->n_col);
    fd_code code = wide && row ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "--repro: out of memory");
    for (int64_t k = 0; code == FD_OK && k < rows; k++) {
        fd_dequantize_row(w->dtype, (const char *)w->data + (first + k) * bytes, row, w->n_col);
        for (int64_t i = 0; i < w->n_col; i++) wide[k * w->n_col + i] = (double)row[i];
    }
    if (code == FD_OK) code = fd_repro_put_array(r, "w", wide, n_row, w->n_col, false, err);
    free(wide);
    free(row);
    return code;
}

fd_code fd_repro_write_matmul(fd_repro *r, fd_error *err) {
    const fd_weight *w = fd_repro_weight(r, 0), *bias = fd_repro_weight(r, 1);
    double b[FD_MEASURE_VALUES] = {0};
    for (int64_t i = 0; i < r->n && bias; i++) b[i] = (double)fd_weight_element(bias, r->first + i);
    fd_repro_add_size(r, "N_IN", (double)w->n_col);
    FD_TRY(fd_repro_put_array(r, "x", r->in[0], 0, w->n_col, false, err));
    FD_TRY(fd_repro_put_array(r, "bias", b, 0, r->n, false, err));
    return fd_repro_put_weight(r, w, r->first, r->n, err);
}

fd_code fd_repro_write_rms_norm(fd_repro *r, fd_error *err) {
    const fd_weight *w = fd_repro_weight(r, 0);
    fd_repro_keep_part(r, w->n_col);
    fd_repro_add_size(r, "N_IN", (double)w->n_col);
    fd_repro_add_size(r, "EPS", (double)r->node->eps);
    FD_TRY(fd_repro_put_array(r, "x", r->in[0] + r->head * w->n_col, 0, w->n_col, false, err));
    return fd_repro_put_weight(r, w, r->head % w->n_row, 0, err);
}

fd_code fd_repro_write_rope(fd_repro *r, fd_error *err) {
    int32_t width = r->node->shape[1], half = r->node->rope.n_rot / 2;
    double *table = malloc(2 * sizeof *table * (size_t)half);
    if (!table) return fd_fail(err, FD_ERR_MEMORY, "--repro: out of memory");
    fd_rope_table_f64(&r->node->rope, fd_repro_weight(r, 0), r->pos, 1, table, table + half);
    fd_repro_keep_part(r, width);
    fd_repro_add_size(r, "N_IN", width);
    fd_repro_add_size(r, "HALF", half);
    fd_repro_add_size(r, "INTERLEAVED", r->node->rope.pairing == FD_ROPE_INTERLEAVED);
    fd_code code = fd_repro_put_array(r, "x", r->in[0] + r->head * width, 0, width, false, err);
    if (code == FD_OK) code = fd_repro_put_array(r, "cosine", table, 0, half, true, err);
    if (code == FD_OK) code = fd_repro_put_array(r, "sine", table + half, 0, half, true, err);
    free(table);
    return code;
}

/* n elements of a vector of the model, from the first that is tested. */
static fd_code put_vector(const fd_repro *r, const char *name, const fd_weight *w, int64_t row, int64_t first,
                          fd_error *err) {
    double x[FD_MEASURE_VALUES];
    for (int64_t i = 0; i < r->n; i++) x[i] = (double)fd_weight_row_element(w, row, first + i);
    return fd_repro_put_array(r, name, x, 0, r->n, false, err);
}

fd_code fd_repro_write_layer_norm(fd_repro *r, fd_error *err) {
    const fd_weight *w = fd_repro_weight(r, 0), *b = fd_repro_weight(r, 1);
    const double one[FD_MEASURE_VALUES] = {1, 1, 1, 1, 1, 1, 1, 1}, zero[FD_MEASURE_VALUES] = {0};
    int64_t width = r->node->shape[r->node->n_dim - 1];
    fd_repro_keep_part(r, width);
    fd_repro_add_size(r, "N_IN", (double)width);
    fd_repro_add_size(r, "EPS", (double)r->node->eps);
    FD_TRY(fd_repro_put_array(r, "x", r->in[0] + r->head * width, 0, width, false, err));
    FD_TRY(w ? put_vector(r, "w", w, r->head % w->n_row, r->offset, err)
             : fd_repro_put_array(r, "w", one, 0, r->n, false, err));
    return b ? put_vector(r, "b", b, r->head % b->n_row, r->offset, err)
             : fd_repro_put_array(r, "b", zero, 0, r->n, false, err);
}

fd_code fd_repro_write_l2_norm(fd_repro *r, fd_error *err) {
    int64_t width = r->node->shape[r->node->n_dim - 1];
    fd_repro_keep_part(r, width);
    fd_repro_add_size(r, "N_IN", (double)width);
    fd_repro_add_size(r, "EPS", (double)r->node->eps);
    return fd_repro_put_array(r, "x", r->in[0] + r->head * width, 0, width, false, err);
}

/* ---- element by element ---- */

fd_code fd_repro_write_one(fd_repro *r, fd_error *err) {
    const fd_node *node = r->node;
    float factor = node->scale;
    if (node->op == FD_OP_ATTN_TEMPERATURE) factor = (float)fd_node_temperature(node, r->pos);
    fd_repro_add_size(r, "SCALE", (double)factor);
    fd_repro_add_size(r, "CAP", (double)node->softcap);
    fd_repro_add_size(r, "LIMIT", (double)node->limit);
    return fd_repro_put_array(r, "x", r->in[0] + r->first, 0, r->n, false, err);
}

/* The second input may have one element for several of the first. */
fd_code fd_repro_write_two(fd_repro *r, fd_error *err) {
    const fd_node *second = &r->graph->nodes[r->node->input[1]];
    int64_t each = fd_node_width(r->node) / fd_node_width(second);
    double b[FD_MEASURE_VALUES];
    for (int64_t i = 0; i < r->n; i++) b[i] = r->in[1][(r->first + i) / each];
    fd_repro_add_size(r, "SLOPE", (double)r->node->slope);
    fd_repro_add_size(r, "LIMIT", (double)r->node->limit);
    FD_TRY(fd_repro_put_array(r, "a", r->in[0] + r->first, 0, r->n, false, err));
    return fd_repro_put_array(r, "b", b, 0, r->n, false, err);
}

/* The second is the model's: a vector, or the position's row of a table. */
fd_code fd_repro_write_with_vector(fd_repro *r, fd_error *err) {
    const fd_weight *w = fd_repro_weight(r, 0);
    int64_t row = r->node->op == FD_OP_ADD_POSITION ? r->pos : 0;
    if (row >= w->n_row)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "--repro: %s has no row for position %d", w->name, r->pos);
    FD_TRY(fd_repro_put_array(r, "a", r->in[0] + r->first, 0, r->n, false, err));
    return put_vector(r, "b", w, row, r->first, err);
}

/* ---- copies: x is where each tested element comes from ---- */

fd_code fd_repro_write_embed(fd_repro *r, fd_error *err) {
    return put_vector(r, "x", fd_repro_weight(r, 0), r->token, r->first, err);
}

fd_code fd_repro_write_slice(fd_repro *r, fd_error *err) {
    const fd_node *from = &r->graph->nodes[r->node->input[0]];
    int64_t n_in = from->shape[from->n_dim - 1], n = fd_node_width(r->node) / (fd_node_width(from) / n_in);
    double x[FD_MEASURE_VALUES];
    for (int64_t i = 0; i < r->n; i++) {
        int64_t at = r->first + i;
        x[i] = r->in[0][at / n * n_in + r->node->first + at % n];
    }
    return fd_repro_put_array(r, "x", x, 0, r->n, false, err);
}

fd_code fd_repro_write_concat(fd_repro *r, fd_error *err) {
    const fd_node *a = &r->graph->nodes[r->node->input[0]], *b = &r->graph->nodes[r->node->input[1]];
    int64_t n_a = a->shape[1], n_b = b->shape[1], n = n_a + n_b;
    double x[FD_MEASURE_VALUES];
    for (int64_t i = 0; i < r->n; i++) {
        int64_t head = (r->first + i) / n, at = (r->first + i) % n, of_b = b->shape[0] == 1 ? 0 : head;
        x[i] = at < n_a ? r->in[0][head * n_a + at] : r->in[1][of_b * n_b + at - n_a];
    }
    return fd_repro_put_array(r, "x", x, 0, r->n, false, err);
}

/* Blocks of a cache's type are another formula. */
fd_code fd_repro_write_cache_row(fd_repro *r, fd_error *err) {
    if (r->node->kv_type != FD_F32)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "--repro: no test is written for %s in blocks", r->node->name);
    return fd_repro_put_array(r, "x", r->in[0] + r->first, 0, r->n, false, err);
}

/* ---- products and attention ---- */

/* A matrix of each head's own. */
fd_code fd_repro_write_head_matmul(fd_repro *r, fd_error *err) {
    const fd_weight *w = fd_repro_weight(r, 0);
    const double none[FD_MEASURE_VALUES] = {0};
    fd_repro_keep_part(r, r->node->shape[1]);
    fd_repro_add_size(r, "N_IN", (double)w->n_col);
    FD_TRY(fd_repro_put_array(r, "x", r->in[0] + r->head * w->n_col, 0, w->n_col, false, err));
    FD_TRY(fd_repro_put_array(r, "bias", none, 0, r->n, false, err));
    return fd_repro_put_weight(r, w, r->first, r->n, err);
}

fd_code fd_repro_write_alibi(fd_repro *r, fd_error *err) {
    fd_repro_keep_part(r, r->pos + 1);
    fd_repro_add_size(r, "SLOPE", fd_alibi_slope(r->node->max_bias, r->node->shape[0], (int32_t)r->head));
    fd_repro_add_size(r, "POSITION", r->pos);
    return fd_repro_put_array(r, "x", r->in[0] + r->first, 0, r->n, false, err);
}

fd_code fd_repro_put_columns(const fd_repro *r, const char *name, const fd_repro_columns *columns, fd_error *err) {
    int64_t n = columns->n;
    double *part = malloc(sizeof *part * (size_t)(columns->n_row * n));
    if (!part) return fd_fail(err, FD_ERR_MEMORY, "--repro: out of memory");
    for (int64_t k = 0; k < columns->n_row; k++)
        memcpy(part + k * n, columns->rows + k * columns->row_width + columns->from, sizeof *part * (size_t)n);
    fd_code code = fd_repro_put_array(r, name, part, columns->n_row, n, false, err);
    free(part);
    return code;
}

/* Columns [from, from + n) of the tested head's K or V in the cache's rows [first, first + n_row). */
static fd_code put_cache(const fd_repro *r, const char *name, int64_t first, int64_t n_row, int64_t from, int64_t n,
                         fd_error *err) {
    const fd_node *cache = &r->graph->nodes[r->node->input[1]];
    int64_t kv_head = r->head / (r->node->shape[0] / cache->shape[0]), width = fd_node_width(cache);
    const fd_repro_columns columns = {r->in[1] + first * width, n_row, width, kv_head * cache->shape[1] + from, n};
    return fd_repro_put_columns(r, name, &columns, err);
}

/* Keys that the window hides have no score; a softcap of 0 is none. */
fd_code fd_repro_write_scores(fd_repro *r, fd_error *err) {
    int32_t head_dim = r->graph->nodes[r->node->input[1]].shape[1];
    fd_repro_keep_part(r, r->pos + 1);
    fd_repro_add_size(r, "N_IN", head_dim);
    fd_repro_add_size(r, "SCALE", (double)r->node->scale);
    fd_repro_add_size(r, "CAP", (double)r->node->softcap);
    fd_repro_add_size(r, "FIRST_SEEN", fd_node_first_seen(r->node, r->pos));
    FD_TRY(fd_repro_put_array(r, "q", r->in[0] + r->head * head_dim, 0, head_dim, false, err));
    return put_cache(r, "k", r->offset, r->n, 0, head_dim, err);
}

fd_code fd_repro_write_softmax(fd_repro *r, fd_error *err) {
    const fd_weight *sinks = fd_repro_weight(r, 0);
    fd_repro_keep_part(r, r->pos + 1);
    double sink = sinks ? (double)fd_weight_element(sinks, r->head) : -1e30;
    fd_repro_add_size(r, "N_IN", r->pos + 1);
    fd_repro_add_size(r, "SINK", sink);
    return fd_repro_put_array(r, "x", r->in[0] + r->head * (r->pos + 1), 0, r->pos + 1, false, err);
}

fd_code fd_repro_write_mix(fd_repro *r, fd_error *err) {
    fd_repro_keep_part(r, r->node->shape[1]);
    fd_repro_add_size(r, "N_IN", r->pos + 1);
    FD_TRY(fd_repro_put_array(r, "p", r->in[0] + r->head * (r->pos + 1), 0, r->pos + 1, false, err));
    return put_cache(r, "v", 0, r->pos + 1, r->offset, r->n, err);
}

fd_code fd_repro_write_arrays(fd_repro *repro, fd_error *err) {
    const fd_repro_op *op = fd_repro_op_of(repro->node->op);
    if (!op)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "--repro: no test is written for the op %s of %s",
                       fd_op_name(repro->node->op), repro->node->name);
    FD_TRY(op->write(repro, err));
    fd_repro_add_size(repro, "N", (double)repro->n);
    fd_repro_add_size(repro, "FIRST", (double)repro->offset);
    return FD_OK;
}

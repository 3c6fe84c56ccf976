#include "compare/weights/requantised_sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clones.h"
#include "compare/products/run_op.h"
#include "model/weight_rows.h"

/* The slope's error is 1/√n where what else is left is as large as the change itself: 0.03 of so many. */
enum {
    MOST_X = FD_REQUANTISED_MOST_X,
    MOST_ROWS = 64,
    FEWEST_ROWS = 16,
    FEW_ROWS = 8,
    MOST_ELEMENTS = 1 << 17,
    FEWEST_VALUES = 64
};

/* Of the product. int8 in groups of 16 changes a product by 2e-3 of it. */
#define LIKE_BINARY32 0x1p-13

void fd_requantised_sample_free(fd_requantised_sample *s) {
    free(s->rows);
    free(s->x);
    free(s->plain);
    free(s->left);
    free(s->wide);
    *s = (fd_requantised_sample){0};
}

/* ---- what was recorded ---- */

static fd_code read_recorded(const fd_requantised_options *o, int32_t node, int32_t pos, float *row, bool *there,
                             fd_error *err) {
    const int32_t at = fd_trace_find(o->cand, o->graph->nodes[node].name);
    double *wide = NULL;
    fd_error why = {0};
    *there = false;
    if (at < 0 || !fd_trace_node_at(o->cand, at)->has_data) return FD_OK;
    const int64_t n = fd_trace_elements(fd_trace_node_at(o->cand, at), pos);
    if (n != fd_node_width(&o->graph->nodes[node])) return FD_OK;
    wide = malloc(sizeof *wide * (size_t)n);
    if (!wide) return fd_fail(err, FD_ERR_MEMORY, "a row of %s: out of memory", o->graph->nodes[node].name);
    const fd_code code = fd_trace_read(o->cand, at, pos, NULL, wide, &why);
    for (int64_t i = 0; i < n && code == FD_OK; i++) row[i] = (float)wide[i];
    free(wide);
    *there = code == FD_OK;
    if (code == FD_OK || code == FD_ERR_INCOMPLETE) return FD_OK;
    *err = why;
    return code;
}

static bool goes_row_by_row(fd_op op) {
    return op == FD_OP_RMS_NORM || op == FD_OP_LAYER_NORM || op == FD_OP_SILU_MUL || op == FD_OP_GELU_MUL;
}

/* The row that a node gave, or gives by rows that were recorded. */
static fd_code read_row(const fd_requantised_options *o, int32_t id, int32_t pos, float *row, bool *there,
                        fd_error *err) {
    const fd_node *node = &o->graph->nodes[id];
    float *in[FD_MAX_INPUTS] = {NULL, NULL};
    FD_TRY(read_recorded(o, id, pos, row, there, err));
    if (*there || !goes_row_by_row(node->op)) return FD_OK;
    fd_op_args args = {.graph = o->graph, .node = node, .pos0 = pos, .n_pos = 1, .n_kv = pos + 1, .out = row};
    fd_code code = FD_OK;
    *there = true;
    for (int k = 0; k < FD_MAX_INPUTS && *there && code == FD_OK; k++) {
        if (node->input[k] < 0) continue;
        in[k] = malloc(sizeof *in[k] * (size_t)fd_node_width(&o->graph->nodes[node->input[k]]));
        code = in[k] ? read_recorded(o, node->input[k], pos, in[k], there, err)
                     : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", node->name);
        args.in[k] = in[k];
    }
    for (int k = 0; k < FD_MAX_WEIGHTS; k++)
        args.weight[k] = node->weight[k] < 0 ? NULL : &o->graph->weights[node->weight[k]];
    if (*there && code == FD_OK) fd_call_op(o->op, FD_NUMERICS_EXACT, &args);
    for (int k = 0; k < FD_MAX_INPUTS; k++) free(in[k]);
    return code;
}

/* ---- what rows give ---- */

/* All products of a row at once, because a sum is a chain of additions that wait for each other. */
FD_FOR_EACH_CPU
static void multiply_row(const float *w, const double *wide, int64_t n, double sums[MOST_X]) {
    for (int k = 0; k < MOST_X; k++) sums[k] = 0;
    for (int64_t i = 0; i < n; i++)
#pragma omp simd
        for (int k = 0; k < MOST_X; k++) sums[k] += (double)w[i] * wide[i * MOST_X + k];
}

/* What rows give: of an embedding their elements, else n_x products of each. */
static void multiply_rows(const fd_requantised_sample *s, const float *rows, int64_t n_row, double *values) {
    const int64_t n_col = s->weight->n_col;
    for (int64_t i = 0; s->n_x == 0 && i < n_row * n_col; i++) values[i] = (double)rows[i];
    for (int64_t r = 0; s->n_x > 0 && r < n_row; r++) {
        double sums[MOST_X];
        multiply_row(rows + r * n_col, s->wide, n_col, sums);
        memcpy(values + r * s->n_x, sums, sizeof *sums * (size_t)s->n_x);
    }
}

static int64_t spread(int64_t i, int64_t n, int64_t of) {
    return n < of ? i * of / n : i;
}

static fd_code sample_embedding(const fd_requantised_options *o, const fd_node *node, fd_requantised_sample *s,
                                fd_error *err) {
    const int64_t n_col = s->weight->n_col, n = o->n_pos < MOST_ROWS ? o->n_pos : MOST_ROWS;
    const int32_t *tokens = fd_trace_tokens(o->cand);
    s->rows = malloc(sizeof *s->rows * (size_t)(n * n_col));
    s->x = malloc(sizeof *s->x * (size_t)n_col);
    s->plain = malloc(sizeof *s->plain * (size_t)(n * n_col));
    s->left = malloc(sizeof *s->left * (size_t)(n * n_col));
    if (!s->rows || !s->x || !s->plain || !s->left) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", node->name);
    for (int64_t k = 0; k < n; k++) {
        const int32_t pos = (int32_t)spread(k, n, o->n_pos);
        bool there;
        FD_TRY(read_recorded(o, node->id, pos, s->x, &there, err));
        if (!there || tokens[pos] < 0 || tokens[pos] >= s->weight->n_row) continue;
        float *row = s->rows + s->n_row * n_col;
        fd_weight_row(s->weight, tokens[pos], row);
        for (int64_t i = 0; i < n_col; i++, s->n++) {
            s->plain[s->n] = (double)row[i];
            s->left[s->n] = (double)s->x[i] - s->plain[s->n];
        }
        s->n_row++;
    }
    return FD_OK;
}

static fd_code sample_product(const fd_requantised_options *o, const fd_node *node, fd_requantised_sample *s,
                              fd_error *err) {
    const fd_weight *w = s->weight, *bias = node->weight[1] < 0 ? NULL : &o->graph->weights[node->weight[1]];
    const int64_t n_col = w->n_col, n_out = w->n_row, n = o->n_pos < MOST_X ? o->n_pos : MOST_X;
    int64_t most = MOST_ELEMENTS / n_col;
    most = most > MOST_ROWS ? MOST_ROWS : most < FEWEST_ROWS ? FEWEST_ROWS : most;
    const int64_t n_row = n_out < most ? n_out : most;
    float *given = malloc(sizeof *given * (size_t)(n * n_out));
    s->rows = malloc(sizeof *s->rows * (size_t)(n_row * n_col));
    s->x = malloc(sizeof *s->x * (size_t)(n * n_col));
    s->plain = malloc(sizeof *s->plain * (size_t)(n_row * n));
    s->left = malloc(sizeof *s->left * (size_t)(n_row * n));
    s->wide = calloc((size_t)n_col * MOST_X, sizeof *s->wide);
    fd_code code = given && s->rows && s->x && s->plain && s->left && s->wide
                       ? FD_OK
                       : fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", node->name);
    for (int64_t k = 0; k < n && code == FD_OK; k++) {
        const int32_t pos = (int32_t)spread(k, n, o->n_pos);
        bool gave = false, read = false;
        code = read_recorded(o, node->id, pos, given + s->n_x * n_out, &gave, err);
        if (code == FD_OK && gave) code = read_row(o, node->input[0], pos, s->x + s->n_x * n_col, &read, err);
        s->n_x += gave && read;
    }
    s->n_row = n_row;
    s->n = code == FD_OK ? s->n_row * s->n_x : 0;
    for (int64_t k = 0; k < s->n_x && s->n; k++)
        for (int64_t i = 0; i < n_col; i++) s->wide[i * MOST_X + k] = (double)s->x[k * n_col + i];
    for (int64_t r = 0; r < n_row && s->n; r++) fd_weight_row(w, spread(r, n_row, n_out), s->rows + r * n_col);
    if (s->n) multiply_rows(s, s->rows, n_row, s->plain);
    for (int64_t r = 0; r < n_row && s->n; r++) {
        for (int64_t k = 0; k < s->n_x; k++) {
            const int64_t at = spread(r, n_row, n_out), i = r * s->n_x + k;
            const double b = bias ? (double)fd_weight_element(bias, at) : 0;
            s->left[i] = (double)given[k * n_out + at] - b - s->plain[i];
        }
    }
    free(given);
    return code;
}

fd_code fd_requantised_sample_open(const fd_requantised_options *o, int32_t id, fd_requantised_sample *s, bool *known,
                                   fd_error *err) {
    const fd_node *node = &o->graph->nodes[id];
    *s = (fd_requantised_sample){.weight = &o->graph->weights[node->weight[0]]};
    *known = false;
    if (!fd_trace_has_data(o->cand, node->name)) return FD_OK;
    FD_TRY(node->op == FD_OP_EMBED ? sample_embedding(o, node, s, err) : sample_product(o, node, s, err));
    double left = 0;
    for (int64_t i = 0; i < s->n; i++) {
        s->size += s->plain[i] * s->plain[i];
        left += s->left[i] * s->left[i];
    }
    *known = s->n >= FEWEST_VALUES && isfinite(left) && isfinite(s->size);
    return FD_OK;
}

bool fd_requantised_sample_is_right(const fd_requantised_sample *s) {
    double squares = 0;
    for (int64_t i = 0; i < s->n; i++) squares += s->left[i] * s->left[i];
    return squares <= LIKE_BINARY32 * LIKE_BINARY32 * s->size;
}

/* ---- slopes ---- */

/* Rows in three forms: the file's, these kept in the grid's type, and the grid's numbers. Only from the second to the third is what
 * quantising does: an engine of 16-bit weights makes the first step alone. */
static void make_steps(const fd_requantised_sample *s, const fd_requantisation *q, int64_t n_row, float *kept,
                       float *grid) {
    const int64_t n_col = s->weight->n_col;
    for (int64_t r = 0; r < n_row; r++) {
        const float *row = s->rows + r * n_col;
        float *to = grid + r * n_col, *cast = kept + r * n_col;
        memcpy(to, row, sizeof *to * (size_t)n_col);
        fd_requantise_row(q, to, n_col);
        for (int64_t i = 0; i < n_col; i++) {
            const float in_type = fd_requantisation_kept(q, row[i]);
            to[i] -= in_type;
            cast[i] = in_type - row[i];
        }
    }
}

/* A position's values less what is a multiple of them all: a norm that is off, or a grid whose steps are all a bit longer, tells
 * nothing of the other. */
static void take_factor_away(const double *plain, double *values, int64_t n, int64_t stride) {
    double yy = 0, vy = 0;
    for (int64_t i = 0; i < n * stride; i += stride) yy += plain[i] * plain[i], vy += values[i] * plain[i];
    for (int64_t i = 0; i < n * stride && yy > 0; i += stride) values[i] -= vy / yy * plain[i];
}

static void take_factors_away(const fd_requantised_sample *s, double *values, int64_t n_row) {
    const int64_t n_col = s->weight->n_col, n_group = s->n_x ? s->n_x : n_row;
    for (int64_t k = 0; k < n_group; k++) {
        const int64_t first = s->n_x ? k : k * n_col;
        take_factor_away(s->plain + first, values + first, s->n_x ? n_row : n_col, s->n_x ? s->n_x : 1);
    }
}

static fd_requantised_slope slope_of_rows(const fd_requantised_sample *s, const fd_requantisation *q, int64_t n_row) {
    const int64_t n = n_row * s->weight->n_col, n_value = n_row * (s->n_x ? s->n_x : s->weight->n_col);
    fd_requantised_slope out = {.error = INFINITY};
    float *kept = malloc(2 * sizeof *kept * (size_t)n), *grid = kept + n;
    double *d = malloc(3 * sizeof *d * (size_t)n_value), *r = d + n_value, *left = r + n_value, rd = 0, dd = 0;
    if (kept && d) make_steps(s, q, n_row, kept, grid);
    if (kept && d) multiply_rows(s, grid, n_row, d);
    if (kept && d && q->dtype != FD_F32) multiply_rows(s, kept, n_row, r);
    for (int64_t i = 0; i < n_value && kept && d; i++) {
        left[i] = s->left[i];
        r[i] = left[i] - (q->dtype == FD_F32 ? 0 : r[i]);
    }
    if (kept && d) take_factors_away(s, d, n_row), take_factors_away(s, r, n_row), take_factors_away(s, left, n_row);
    for (int64_t i = 0; i < n_value && kept && d; i++) {
        rd += r[i] * d[i];
        dd += d[i] * d[i];
        out.file += left[i] * left[i];
        out.before += r[i] * r[i];
        out.after += (r[i] - d[i]) * (r[i] - d[i]);
    }
    free(kept);
    free(d);
    if (!(dd > 0)) return out;
    out.slope = rd / dd;
    out.error = sqrt(fmax(out.before - out.slope * rd, 0) / dd / (double)n_value);
    return out;
}

fd_requantised_slope fd_requantised_slope_of(const fd_requantised_sample *s, const fd_requantisation *q) {
    return slope_of_rows(s, q, s->n_row);
}

/* The grid of one engine is that of another but for a last place here and there, so a slope of 1 may be a tenth off. Twelve standard
 * errors from 0 do not happen by chance. */
#define NEAR     0.1
#define FAR      12.0
#define EXPLAINS 0.9 /* of the squares at most so many are left */

bool fd_requantised_fits(const fd_requantised_slope *s) {
    const bool explains = s->after <= EXPLAINS * fmin(s->file, s->before); /* the grid of Q8_0 may be the file's own */
    return explains && s->slope > FAR * s->error && fabs(s->slope - 1) <= NEAR + 3 * s->error;
}

/* Of a few rows, five standard errors from 1. */
bool fd_requantised_may_fit(const fd_requantised_sample *s, const fd_requantisation *q) {
    const fd_requantised_slope few = slope_of_rows(s, q, s->n_row < FEW_ROWS ? s->n_row : FEW_ROWS);
    return fabs(few.slope - 1) <= NEAR + 5 * few.error;
}

bool fd_requantised_refuted(const fd_requantised_slope *s) {
    return s->error <= NEAR && fabs(s->slope) <= NEAR + 3 * s->error;
}

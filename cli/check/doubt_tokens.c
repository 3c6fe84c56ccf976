/* Whose embeddings a dump has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/check/doubt_dump.h"
#include "model/weight_rows.h"

enum { MOST_ROWS = 16, NONE = -1 };

/* What bfloat16 leaves of a weight, twice. */
#define NEAR 0x1p-8

typedef struct rows {
    const fd_source_tensor *tensor;
    double *values; /* [n_row, n_embd], owned */
    int32_t first;  /* position of the first of them */
    int32_t ids[MOST_ROWS];
} rows;

static bool are_near(const double *values, const float *row, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(values[i] - (double)row[i]) <= NEAR * fabs((double)row[i]))) return false;
    return true;
}

static bool is_row(const double *values, const float *row, int64_t n) {
    double size = 0;
    for (int64_t i = 0; i < n; i++) size += fabs((double)row[i]);
    return size > 0 && are_near(values, row, n);
}

/* The first n_row rows of an array that is in memory row by row, else all of it. */
static double *fetch_rows(fd_array array, int64_t n_element, int64_t width, int32_t n_row) {
    if (fd_array_reshape(&array, 2, (int64_t[]){n_element / width, width}))
        array.shape[0] = n_row, n_element = n_row * width;
    double *values = malloc((size_t)n_element * sizeof *values);
    if (values) fd_array_fetch(&array, values);
    return values;
}

/* Arrays of the first step, of n_token positions, with so many rows or fewer, its last, as wide as the embedding. */
static fd_code open_rows(const fd_source *source, const fd_weight *w, int32_t n_token, rows **out, size_t *n,
                         int32_t *n_row, fd_error *err) {
    *n = 0;
    *n_row = 0;
    *out = calloc(fd_source_count(source) + 1, sizeof **out);
    if (!*out) return fd_fail(err, FD_ERR_MEMORY, "%zu arrays: out of memory", fd_source_count(source));
    for (size_t i = 0; i < fd_source_count(source); i++) {
        const fd_source_tensor *t = fd_source_at(source, i);
        const int64_t n_element = fd_source_elements(t);
        if (t->step != 0 || t->rank < 2 || t->shape[t->rank - 1] != w->n_col || fd_source_is_weight(t->name)) continue;
        if (n_element == 0 || n_element / w->n_col > n_token) continue;
        const int32_t of_this = (int32_t)fmin((double)(n_element / w->n_col), MOST_ROWS);
        if (*n_row && (of_this != *n_row || n_element / w->n_col != n_token - (*out)[0].first)) continue;
        fd_source_view view;
        FD_TRY(fd_source_view_open(source, i, &view, err));
        rows *r = &(*out)[*n];
        *r = (rows){.tensor = t,
                    .values = fetch_rows(view.array, n_element, w->n_col, of_this),
                    .first = n_token - (int32_t)(n_element / w->n_col)};
        for (int k = 0; k < MOST_ROWS; k++) r->ids[k] = NONE;
        fd_source_view_close(&view);
        if (!r->values) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", t->name);
        *n_row = of_this;
        ++*n;
    }
    return FD_OK;
}

/* Does a row that is not known yet begin as row `id` does? The rest of nearly all of the vocabulary is then not wanted. */
static bool begins_any(const rows *all, size_t n, int32_t n_row, const fd_weight *w, int32_t id) {
    float piece[FD_PIECE];
    const int64_t length = fd_piece_length(w->n_col, 0);
    fd_weight_piece(w, id, 0, piece);
    for (size_t i = 0; i < n; i++)
        for (int32_t k = 0; k < n_row; k++)
            if (all[i].ids[k] == NONE && are_near(all[i].values + k * w->n_col, piece, length)) return true;
    return false;
}

static void look_up(rows *all, size_t n, int32_t n_row, const float *row, int64_t width, int32_t id) {
    for (size_t i = 0; i < n; i++)
        for (int32_t k = 0; k < n_row; k++)
            if (all[i].ids[k] == NONE && is_row(all[i].values + k * width, row, width)) all[i].ids[k] = id;
}

static int put_ids(char *out, size_t size, const int32_t *ids, int32_t n) {
    int at = 0;
    for (int32_t k = 0; k < n && k < 8 && (size_t)at < size; k++)
        at += snprintf(out + at, size - (size_t)at, "%s%d", k ? ", " : "", ids[k]);
    if (n > 8 && (size_t)at < size) at += snprintf(out + at, size - (size_t)at, ", …");
    return at;
}

/* The first row of another token, where all are of some token; else n_row. */
static int32_t first_other(const rows *r, const int32_t *tokens, int32_t n_row) {
    int32_t first = n_row;
    for (int32_t k = n_row - 1; k >= 0; k--) {
        if (r->ids[k] == NONE) return n_row;
        if (r->ids[k] != tokens[k]) first = k;
    }
    return first;
}

static const fd_weight *embeddings(const fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_EMBED && graph->nodes[i].weight[0] >= 0)
            return &graph->weights[graph->nodes[i].weight[0]];
    return NULL;
}

fd_code fd_cli_doubt_tokens(const fd_import_plan *plan, const fd_graph *graph, char *out, size_t size, fd_error *err) {
    const fd_source *source = plan->source;
    const int32_t *tokens = plan->tokens, n_token = plan->steps[0].n_pos;
    const fd_weight *w = embeddings(graph);
    rows *all = NULL;
    size_t n = 0;
    int32_t n_row = 0;
    out[0] = '\0';
    if (!w || !w->data || fd_source_trace(source)) return FD_OK;
    fd_code code = open_rows(source, w, n_token, &all, &n, &n_row, err);
    float *row = malloc((size_t)w->n_col * sizeof *row);
    if (code == FD_OK && !row) code = fd_fail(err, FD_ERR_MEMORY, "embeddings: out of memory");
    if (n > 0) tokens += all[0].first;
    for (int32_t k = 0; code == FD_OK && k < n_row; k++) { /* of equal rows the token given */
        fd_weight_row(w, tokens[k], row);
        for (size_t i = 0; i < n; i++)
            if (is_row(all[i].values + k * w->n_col, row, w->n_col)) all[i].ids[k] = tokens[k];
    }
    for (int32_t id = 0; code == FD_OK && n > 0 && id < (int32_t)w->n_row; id++) {
        if (!begins_any(all, n, n_row, w, id)) continue;
        fd_weight_row(w, id, row);
        look_up(all, n, n_row, row, w->n_col, id);
    }
    for (size_t i = 0; i < n && code == FD_OK && !out[0]; i++) {
        const int32_t at = first_other(&all[i], tokens, n_row);
        if (at == n_row) continue;
        int used = snprintf(out, size, "%.80s has, from position %d on, the embeddings of tokens ", all[i].tensor->name,
                            all[i].first + at);
        used += put_ids(out + used, size - (size_t)used, all[i].ids + at, n_row - at);
        used += snprintf(out + used, size - (size_t)used, ", those given are ");
        put_ids(out + used, size - (size_t)used, tokens + at, n_row - at);
    }
    for (size_t i = 0; i < n; i++) free(all[i].values);
    free(all);
    free(row);
    return code;
}

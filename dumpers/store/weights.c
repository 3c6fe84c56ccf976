/* The group /weights: a dataset of row hashes for each weight. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "dumpers/store/reader.h"
#include "dumpers/store/weights.h"

/* ---- writing ---- */

static fd_code put_weight(hid_t group, const fd_weight *weight, const char *name, int32_t most, int32_t seq,
                          fd_error *err) {
    fd_weight_rows rows;
    FD_TRY(fd_weight_hash(weight, fd_weight_rows_per_hash(weight->n_row, most), &rows, err));
    snprintf(rows.name, sizeof rows.name, "%s", name);
    bool ok = fd_weight_put(group, &rows, seq);
    fd_weight_rows_free(&rows);
    return ok ? FD_OK : fd_h5_fail(err, FD_ERR_IO, "weights/%s: cannot be written", name);
}

/* What each weight of the model is in the graph; -1 before any node reads it. A node that reads other bytes than the
 * first one did (a copy of a tied table, say) gets a dataset of its own. */
static fd_code put_nodes(hid_t group, const fd_graph *graph, const fd_graph *model, int32_t most, int32_t *first,
                         fd_error *err) {
    int32_t seq = 0;
    for (int32_t i = 0; i < graph->n_node && i < model->n_node; i++)
        for (int k = 0; k < FD_MAX_WEIGHTS; k++) {
            int32_t of_model = model->nodes[i].weight[k], used = graph->nodes[i].weight[k];
            if (of_model < 0 || used < 0 || !fd_weight_can_hash(&graph->weights[used])) continue;
            if (first[of_model] == used) continue;
            char name[192];
            const char *as = model->weights[of_model].name;
            if (first[of_model] < 0)
                snprintf(name, sizeof name, "%s", as);
            else
                snprintf(name, sizeof name, "%.62s:%.127s", graph->nodes[i].name, as);
            if (fd_h5_has(group, name)) continue;
            FD_TRY(put_weight(group, &graph->weights[used], name, most, seq++, err));
            if (first[of_model] < 0) first[of_model] = used;
        }
    return FD_OK;
}

fd_code fd_trace_write_weights(hid_t file, const fd_graph *graph, const fd_graph *model, int32_t most_hashes,
                               fd_error *err) {
    hid_t group = fd_weights_group(file);
    if (group < 0) return fd_h5_fail(err, FD_ERR_IO, "group weights: cannot be created");
    int32_t *first = malloc(sizeof *first * (size_t)(model->n_weight + 1));
    fd_code code = first ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "hashes of weights: out of memory");
    for (int32_t i = 0; first && i < model->n_weight; i++) first[i] = -1;
    if (code == FD_OK) code = put_nodes(group, graph, model, most_hashes, first, err);
    free(first);
    fd_h5_release(group);
    return code;
}

/* ---- reading ---- */

/* Of the hashes that come with the questions, as many as we write. */
enum { FEW_BYTES = 8 * FD_MAX_WEIGHT_HASHES };

/* An attribute that may be absent, in [low, INT32_MAX]. */
static fd_code get(const fd_trace *trace, const char *set, const char *name, const char *attribute, int64_t low,
                   int64_t absent, int64_t *out, fd_error *err) {
    fd_h5_found found = fd_h5_reader_int(trace->reader, set, attribute, out);
    if (found == FD_H5_ABSENT) {
        *out = absent;
        return FD_OK;
    }
    if (found == FD_H5_FOUND && *out >= low && *out <= INT32_MAX) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "%s: weights/%.160s: attribute %s is %s, expected an integer from %lld",
                   trace->path, name, attribute, found == FD_H5_FOUND ? "out of range" : "no integer", (long long)low);
}

static fd_code read_attributes(const fd_trace *trace, const char *set, fd_weight_rows *w, int64_t *seq, fd_error *err) {
    int64_t each, n_row;
    FD_TRY(get(trace, set, w->name, "rows_per_hash", 1, 1, &each, err));
    FD_TRY(get(trace, set, w->name, "n_row", 1, each == 1 ? w->n_hash : 0, &n_row, err));
    FD_TRY(get(trace, set, w->name, "n_col", 1, 0, &w->n_col, err));
    FD_TRY(get(trace, set, w->name, "n_zero_row", 0, -1, &w->n_zero_row, err));
    FD_TRY(get(trace, set, w->name, "n_trailing_zero_row", 0, -1, &w->n_trailing_zero_row, err));
    FD_TRY(get(trace, set, w->name, "seq", 0, -1, seq, err));
    fd_h5_reader_string(trace->reader, set, "dtype", w->dtype, sizeof w->dtype, NULL);
    w->rows_per_hash = (int32_t)each;
    w->n_row = n_row;
    if ((n_row + each - 1) / each == w->n_hash) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "%s: weights/%.160s: %lld hashes of %lld rows each, but n_row is %lld",
                   trace->path, w->name, (long long)w->n_hash, (long long)each, (long long)n_row);
}

static fd_code read_hashes(const fd_trace *trace, const char *set, fd_weight_rows *w, fd_error *err) {
    fd_h5_dataset found;
    bool ok = fd_h5_reader_dataset(trace->reader, set, &found) && found.class == FD_H5_IS_INTEGER &&
              found.element_bytes == 8 && found.simple && found.shape.rank == 1 && found.shape.dim[0] >= 1 &&
              found.shape.dim[0] <= INT32_MAX;
    hsize_t least = ok ? found.shape.dim[0] * 8 : 0;
    if (found.filtered) least /= 2000; /* as for the other tables */
    if (!ok || fd_h5_reader_stored(trace->reader, set) < least)
        return fd_fail(err, FD_ERR_INPUT, "%s: weights/%.160s: expected a list of 64-bit integers, one for each hash",
                       trace->path, w->name);
    w->n_hash = (int64_t)found.shape.dim[0];
    w->hashes = malloc(sizeof *w->hashes * (size_t)w->n_hash);
    if (!w->hashes) return fd_fail(err, FD_ERR_MEMORY, "%s: weights/%.160s: out of memory", trace->path, w->name);
    fd_h5_question few = {FD_H5_HASHES, set, "", (uint32_t)(w->n_hash * 8)};
    if (w->n_hash * 8 <= FEW_BYTES && fd_h5_reader_ask(trace->reader, &few, w->hashes).found == FD_H5_FOUND)
        return FD_OK;
    fd_h5_block block = {set, &fd_h5_u64, found.shape, {.rank = 1}, found.shape};
    if (!fd_h5_reader_rows(trace->reader, &block, w->hashes))
        return fd_h5_reader_fail(trace->reader, err, FD_ERR_INPUT, "%s: weights/%.160s: cannot be read", trace->path,
                                 w->name);
    return FD_OK;
}

typedef struct ordered {
    fd_weight_rows rows;
    int64_t seq;
} ordered;

static int by_seq(const void *a, const void *b) {
    const ordered *x = a, *y = b;
    if (x->seq != y->seq) return x->seq < y->seq ? -1 : 1;
    return strcmp(x->rows.name, y->rows.name);
}

enum { AT_ONCE = 32, WEIGHT_PATH = 512 };

/* Has the library asked about n <= AT_ONCE weights at once. */
static void look_ahead(const fd_trace *trace, const fd_h5_link *links, size_t n) {
    static const fd_h5_question wanted[] = {
        {FD_H5_DATASET, NULL, "", 0},           {FD_H5_STORED, NULL, "", 0},
        {FD_H5_HASHES, NULL, "", FEW_BYTES},    {FD_H5_INTEGER, NULL, "rows_per_hash", 0},
        {FD_H5_INTEGER, NULL, "n_row", 0},      {FD_H5_INTEGER, NULL, "n_col", 0},
        {FD_H5_INTEGER, NULL, "n_zero_row", 0}, {FD_H5_INTEGER, NULL, "n_trailing_zero_row", 0},
        {FD_H5_INTEGER, NULL, "seq", 0},        {FD_H5_TEXT, NULL, "dtype", sizeof((fd_weight_rows *)0)->dtype},
    };
    enum { N = sizeof wanted / sizeof *wanted };
    char paths[AT_ONCE][WEIGHT_PATH];
    fd_h5_question questions[AT_ONCE * N];
    for (size_t i = 0; i < n; i++) {
        snprintf(paths[i], sizeof paths[i], "weights/%s", links[i].name);
        for (size_t q = 0; q < N; q++) {
            questions[i * N + q] = wanted[q];
            questions[i * N + q].object = paths[i];
        }
    }
    fd_h5_reader_prefetch(trace->reader, questions, n * N);
}

static fd_code read_all(const fd_trace *trace, const fd_h5_link *links, size_t n, ordered *all, fd_error *err) {
    for (size_t i = 0; i < n; i++) {
        fd_weight_rows *w = &all[i].rows;
        char set[WEIGHT_PATH];
        if (i % AT_ONCE == 0) look_ahead(trace, links + i, n - i < AT_ONCE ? n - i : AT_ONCE);
        snprintf(w->name, sizeof w->name, "%.191s", links[i].name);
        snprintf(set, sizeof set, "weights/%s", links[i].name);
        FD_TRY(read_hashes(trace, set, w, err));
        FD_TRY(read_attributes(trace, set, w, &all[i].seq, err));
    }
    return FD_OK;
}

static fd_code read_group(const fd_trace *trace, fd_weight_table *out, fd_error *err) {
    size_t n, limit = (size_t)fd_limit_of(FD_LIMIT_WEIGHTS);
    fd_h5_link *links = fd_h5_reader_links(trace->reader, "weights", limit, &n);
    if (!links)
        return fd_h5_reader_fail(trace->reader, err, FD_ERR_INPUT, "%s: weights: not a group that can be listed",
                                 trace->path);
    ordered *all = calloc(n + 1, sizeof *all);
    out->rows = calloc(n + 1, sizeof *out->rows);
    fd_code code = all && out->rows ? read_all(trace, links, n, all, err)
                                    : fd_fail(err, FD_ERR_MEMORY, "%s: weights: out of memory", trace->path);
    if (code == FD_OK) qsort(all, n, sizeof *all, by_seq);
    for (size_t i = 0; all && out->rows && i < n; i++) out->rows[i] = all[i].rows;
    out->n = out->rows ? (int32_t)n : 0;
    free(all);
    free(links);
    return code;
}

fd_code fd_trace_read_weights(const fd_trace *trace, fd_weight_table *out, fd_error *err) {
    *out = (fd_weight_table){0};
    fd_code code = FD_OK;
    if (fd_h5_reader_has(trace->reader, "weights")) code = read_group(trace, out, err);
    code = fd_h5_reader_survived(trace->reader, code, err);
    if (code != FD_OK) fd_weight_table_free(out);
    return code;
}

void fd_weight_table_free(fd_weight_table *table) {
    for (int32_t i = 0; i < table->n; i++) fd_weight_rows_free(&table->rows[i]);
    free(table->rows);
    *table = (fd_weight_table){0};
}

const fd_weight_rows *fd_weight_table_find(const fd_weight_table *table, const char *name) {
    for (int32_t i = 0; i < table->n; i++)
        if (strcmp(table->rows[i].name, name) == 0) return &table->rows[i];
    return NULL;
}

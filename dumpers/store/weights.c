/* The group /weights: a dataset of row hashes for each weight. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/reader.h"
#include "dumpers/store/weights.h"

/* Ten times what the largest models have; they are looked up one by one. */
enum { MOST_WEIGHTS = 1 << 14 };

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

/* An attribute that may be absent, in [low, INT32_MAX]. */
static fd_code get(const fd_trace *trace, hid_t set, const char *name, const char *attribute, int64_t low,
                   int64_t absent, int64_t *out, fd_error *err) {
    fd_h5_found found = fd_h5_get_int(set, attribute, out);
    if (found == FD_H5_ABSENT) {
        *out = absent;
        return FD_OK;
    }
    if (found == FD_H5_FOUND && *out >= low && *out <= INT32_MAX) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "%s: weights/%.160s: attribute %s is %s, expected an integer from %lld",
                   trace->path, name, attribute, found == FD_H5_FOUND ? "out of range" : "no integer", (long long)low);
}

static fd_code read_attributes(const fd_trace *trace, hid_t set, fd_weight_rows *w, int64_t *seq, fd_error *err) {
    int64_t each, n_row;
    FD_TRY(get(trace, set, w->name, "rows_per_hash", 1, 1, &each, err));
    FD_TRY(get(trace, set, w->name, "n_row", 1, each == 1 ? w->n_hash : 0, &n_row, err));
    FD_TRY(get(trace, set, w->name, "n_col", 1, 0, &w->n_col, err));
    FD_TRY(get(trace, set, w->name, "n_zero_row", 0, -1, &w->n_zero_row, err));
    FD_TRY(get(trace, set, w->name, "n_trailing_zero_row", 0, -1, &w->n_trailing_zero_row, err));
    FD_TRY(get(trace, set, w->name, "seq", 0, -1, seq, err));
    fd_h5_get_string(set, "dtype", w->dtype, sizeof w->dtype, NULL);
    w->rows_per_hash = (int32_t)each;
    w->n_row = n_row;
    if ((n_row + each - 1) / each == w->n_hash) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "%s: weights/%.160s: %lld hashes of %lld rows each, but n_row is %lld",
                   trace->path, w->name, (long long)w->n_hash, (long long)each, (long long)n_row);
}

static fd_code read_hashes(const fd_trace *trace, hid_t set, fd_weight_rows *w, fd_error *err) {
    fd_h5_shape shape = {0};
    hid_t type = set < 0 ? -1 : H5Dget_type(set);
    bool ok = type >= 0 && H5Tget_class(type) == H5T_INTEGER && H5Tget_size(type) == 8 && fd_h5_shape_of(set, &shape) &&
              shape.rank == 1 && shape.dim[0] >= 1 && shape.dim[0] <= INT32_MAX;
    fd_h5_release(type);
    hid_t create = ok ? H5Dget_create_plist(set) : -1;
    hsize_t least = ok ? shape.dim[0] * 8 : 0;
    if (create >= 0 && H5Pget_nfilters(create) > 0) least /= 2000; /* as for the other tables */
    fd_h5_release(create);
    if (!ok || H5Dget_storage_size(set) < least)
        return fd_fail(err, FD_ERR_INPUT, "%s: weights/%.160s: expected a list of 64-bit integers, one for each hash",
                       trace->path, w->name);
    w->n_hash = (int64_t)shape.dim[0];
    w->hashes = malloc(sizeof *w->hashes * (size_t)w->n_hash);
    if (!w->hashes) return fd_fail(err, FD_ERR_MEMORY, "%s: weights/%.160s: out of memory", trace->path, w->name);
    if (H5Dread(set, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, w->hashes) < 0)
        return fd_h5_fail(err, FD_ERR_INPUT, "%s: weights/%.160s: cannot be read", trace->path, w->name);
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

static fd_code read_all(const fd_trace *trace, hid_t group, const fd_h5_link *links, size_t n, ordered *all,
                        fd_error *err) {
    for (size_t i = 0; i < n; i++) {
        fd_weight_rows *w = &all[i].rows;
        snprintf(w->name, sizeof w->name, "%.191s", links[i].name);
        hid_t set = H5Dopen2(group, links[i].name, H5P_DEFAULT);
        fd_code code = read_hashes(trace, set, w, err);
        if (code == FD_OK) code = read_attributes(trace, set, w, &all[i].seq, err);
        fd_h5_release(set);
        FD_TRY(code);
    }
    return FD_OK;
}

static fd_code read_group(const fd_trace *trace, hid_t group, fd_weight_table *out, fd_error *err) {
    size_t n;
    fd_h5_link *links = group < 0 ? NULL : fd_h5_links(group, MOST_WEIGHTS, &n);
    if (!links) return fd_h5_fail(err, FD_ERR_INPUT, "%s: weights: not a group that can be listed", trace->path);
    ordered *all = calloc(n + 1, sizeof *all);
    out->rows = calloc(n + 1, sizeof *out->rows);
    fd_code code = all && out->rows ? read_all(trace, group, links, n, all, err)
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
    fd_h5_guard guard = fd_h5_begin();
    fd_code code = FD_OK;
    if (fd_h5_has(trace->root, "weights")) {
        hid_t group = H5Gopen2(trace->root, "weights", H5P_DEFAULT);
        code = read_group(trace, group, out, err);
        fd_h5_release(group);
    }
    fd_h5_end(guard);
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

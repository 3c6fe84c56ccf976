/* The tables of a trace: read whole when it is opened, or some positions at a time where they exceed its memory. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/observe/health.h"
#include "dumpers/store/reader.h"

static fd_code check_rows(const fd_trace *trace, const char *what, size_t element_bytes, int n_rest,
                          const hsize_t *rest, int32_t n, fd_h5_shape *shape, fd_error *err) {
    fd_h5_dataset set;
    if (!fd_h5_reader_dataset(trace->reader, what, &set))
        return fd_h5_reader_fail(trace->reader, err, FD_ERR_INPUT, "%s: %s: not a dataset that opens", trace->path,
                                 what);
    fd_h5_shape found = set.shape, expected = {.rank = 1 + n_rest, .dim = {(hsize_t)n}};
    char found_text[128], expected_text[128];
    bool same = set.simple && found.rank == expected.rank &&
                (found.dim[0] == (hsize_t)n || (!trace->info.complete && found.dim[0] > (hsize_t)n));
    hsize_t bytes = (hsize_t)n * element_bytes;
    *shape = found;
    for (int i = 0; i < n_rest; i++) {
        expected.dim[1 + i] = rest[i];
        same = same && found.dim[1 + i] == rest[i];
        bytes *= rest[i];
    }
    if (!same)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: shape %s, expected %s", trace->path, what,
                       fd_h5_shape_text(&found, found_text), fd_h5_shape_text(&expected, expected_text));
    /* rows that are claimed but were never written would read as fill; compressed tables may be smaller, within
     * reason */
    hsize_t stored = fd_h5_reader_stored(trace->reader, what), least = set.filtered ? bytes / 2000 : bytes;
    if (stored < least)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s: %" PRIu64 " bytes stored, expected %" PRIu64, trace->path, what,
                       (uint64_t)stored, (uint64_t)bytes);
    return FD_OK;
}

fd_code fd_trace_load_rows(const fd_trace *trace, const char *what, const fd_h5_type *type, int n_rest,
                           const hsize_t *rest, int32_t n, void **out, fd_error *err) {
    fd_h5_block block = {what, type, .start = {.rank = 1 + n_rest}, .count = {1 + n_rest, {(hsize_t)n}}};
    size_t bytes = (size_t)n * type->bytes;
    *out = NULL;
    for (int i = 0; i < n_rest; i++) {
        block.count.dim[1 + i] = rest[i];
        bytes *= (size_t)rest[i];
    }
    FD_TRY(check_rows(trace, what, type->bytes, n_rest, rest, n, &block.shape, err));
    fd_code code = FD_OK;
    void *rows = malloc(bytes ? bytes : 1);
    if (!rows)
        code = fd_fail(err, FD_ERR_MEMORY, "%s: %s: out of memory for %zu bytes", trace->path, what, bytes);
    else if (!fd_h5_reader_rows(trace->reader, &block, rows))
        code = fd_h5_reader_fail(trace->reader, err, FD_ERR_INPUT, "%s: %s: cannot be read", trace->path, what);
    if (code != FD_OK) {
        free(rows);
        return code;
    }
    *out = rows;
    return FD_OK;
}

static fd_code load_column(fd_trace *trace, int c, fd_error *err) {
    const fd_health_info *info = &fd_health_columns[c];
    char what[64];
    snprintf(what, sizeof what, "health/%s", info->name);
    if (!fd_h5_reader_has(trace->reader, what)) return FD_OK;
    hsize_t rest[2] = {FD_TOP_K, 0};
    void *rows;
    if (info->n_extra == 2) { /* the number of layers and heads is the dataset's own, the same for both */
        fd_h5_dataset set;
        bool ok = fd_h5_reader_dataset(trace->reader, what, &set) && set.simple && set.shape.rank == 3 &&
                  set.shape.dim[1] - 1 < 1 << 20 && set.shape.dim[2] - 1 < 1 << 20;
        rest[0] = trace->n_layer > 0 ? (hsize_t)trace->n_layer : set.shape.dim[1];
        rest[1] = trace->n_head > 0 ? (hsize_t)trace->n_head : set.shape.dim[2];
        if (!ok) return fd_fail(err, FD_ERR_INPUT, "%s: %s: expected [n_pos, n_layer, n_head]", trace->path, what);
        if (rest[0] * rest[1] > trace->memory / 8 / sizeof(float) / ((size_t)trace->n_pos + 1)) return FD_OK;
    }
    FD_TRY(fd_trace_load_rows(trace, what, info->is_int ? &fd_h5_i32 : &fd_h5_f32, info->n_extra, rest, trace->n_pos,
                              &rows, err));
    if (info->n_extra == 2) {
        trace->n_layer = (int32_t)rest[0];
        trace->n_head = (int32_t)rest[1];
        *(c == FD_HEALTH_ENTROPY ? &trace->entropy : &trace->sink) = rows;
        return FD_OK;
    }
    size_t width = info->n_extra == 1 ? FD_TOP_K * 4 : 4;
    for (int32_t i = 0; i < trace->n_pos; i++)
        memcpy((char *)&trace->health[i] + info->offset, (const char *)rows + (size_t)i * width, width);
    free(rows);
    return FD_OK;
}

/* Checks a table [n_pos, n_node, columns] and reads it, if all of it may be in memory; else fd_trace_table_row does. */
static fd_code open_table(const fd_trace *trace, const char *name, const fd_h5_type *type, int n_column,
                          fd_trace_table **out, fd_error *err) {
    fd_trace_table *t = calloc(1, sizeof *t);
    if (!t) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", trace->path);
    *out = t;
    *t = (fd_trace_table){.name = name, .type = type, .n_rest = 2, .rest = {(hsize_t)trace->n_node, (hsize_t)n_column}};
    t->row_bytes = (size_t)trace->n_node * (size_t)n_column * type->bytes;
    size_t most = t->row_bytes ? trace->memory / 8 / t->row_bytes : SIZE_MAX;
    t->most = most < 1 ? 1 : most > INT32_MAX ? INT32_MAX : (int32_t)most;
    if (trace->n_pos <= t->most) {
        t->n = trace->n_pos;
        return fd_trace_load_rows(trace, name, type, 2, t->rest, t->n, &t->rows, err);
    }
    fd_code code = check_rows(trace, name, type->bytes, 2, t->rest, trace->n_pos, &t->shape, err);
    if (code == FD_OK && !(t->rows = malloc((size_t)t->most * t->row_bytes)))
        code = fd_fail(err, FD_ERR_MEMORY, "%s: %s: out of memory for %zu bytes", trace->path, name,
                       (size_t)t->most * t->row_bytes);
    return code;
}

const void *fd_trace_table_row(const fd_trace *trace, fd_trace_table *t, int32_t pos) {
    if (pos < t->first || pos >= t->first + t->n) {
        int32_t first = pos / t->most * t->most, n = t->most;
        if (n > trace->n_pos - first) n = trace->n_pos - first;
        fd_h5_block block = {.object = t->name,
                             .type = t->type,
                             .shape = t->shape,
                             .start = {3, {(hsize_t)first}},
                             .count = {3, {(hsize_t)n, t->rest[0], t->rest[1]}}};
        bool ok = fd_h5_reader_rows(trace->reader, &block, t->rows);
        t->first = first;
        t->n = ok ? n : 0;
        if (!ok) return NULL;
    }
    return (const char *)t->rows + (size_t)(pos - t->first) * t->row_bytes;
}

void fd_trace_table_free(fd_trace_table *table) {
    if (table) free(table->rows);
    free(table);
}

fd_code fd_trace_load_tables(fd_trace *trace, fd_error *err) {
    bool prints = fd_h5_reader_has(trace->reader, "fingerprints"), stats = fd_h5_reader_has(trace->reader, "stats");
    if ((prints || stats) && !trace->has_graph)
        return fd_fail(err, FD_ERR_INPUT, "%s: %s without /graph: nothing says which column is which tensor",
                       trace->path, prints ? "fingerprints" : "stats");
    if (prints) FD_TRY(open_table(trace, "fingerprints", &fd_h5_u64, 2, &trace->fingerprints, err));
    if (stats) FD_TRY(open_table(trace, "stats", &fd_h5_f64, FD_N_STATS, &trace->stats, err));
    if ((size_t)trace->n_pos > trace->memory / 8 / sizeof *trace->health) return FD_OK; /* said in trace.h */
    if (!fd_h5_reader_has(trace->reader, "health")) return FD_OK;
    trace->health = malloc((size_t)trace->n_pos * sizeof *trace->health + 1);
    if (!trace->health) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", trace->path);
    for (int32_t i = 0; i < trace->n_pos; i++) {
        fd_health_clear(&trace->health[i]);
        trace->health[i].n_kv = i + 1;
    }
    for (int c = 0; c < FD_HEALTH_COUNT; c++) FD_TRY(load_column(trace, c, err));
    return FD_OK;
}

/* Steps become part of the file: what they add to the small tables, and the flushes that make them count. Several steps
 * that ended while the one before was being written go together. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/writer.h"

/* Rows [first, first + n) of a table, from the steps' buffers. */
typedef struct span {
    const fd_trace_pending *steps;
    int32_t first, n;
    char *rows; /* room for the widest table's rows */
} span;

/* Appends the rows that every step has at `offset` of fd_trace_pending, `bytes` a position. */
static bool append(span *s, hid_t set, hid_t type, size_t offset, size_t bytes) {
    fd_h5_shape shape;
    char *to = s->rows;
    if (set < 0) return true;
    if (!fd_h5_shape_of(set, &shape)) return false;
    for (const fd_trace_pending *step = s->steps; step; step = step->next) {
        const void *rows;
        memcpy(&rows, (const char *)step + offset, sizeof rows);
        memcpy(to, rows, (size_t)step->n_tok * bytes);
        to += (size_t)step->n_tok * bytes;
    }
    hsize_t start[FD_H5_MAX_RANK] = {(hsize_t)s->first}, count[FD_H5_MAX_RANK];
    memcpy(count, shape.dim, sizeof count);
    count[0] = (hsize_t)s->n;
    shape.dim[0] = start[0] + count[0];
    return H5Dset_extent(set, shape.dim) >= 0 && fd_h5_write_block(set, type, shape.rank, start, count, s->rows);
}

/* A column of fd_trace_health. */
static bool append_column(const fd_trace_writer *writer, span *s, int c) {
    const fd_health_info *info = &fd_health_columns[c];
    size_t bytes = 4 * (info->n_extra == 1 ? (size_t)FD_TOP_K : 1);
    char *to = s->rows;
    for (const fd_trace_pending *step = s->steps; step; step = step->next)
        for (int32_t i = 0; i < step->n_tok; i++, to += bytes)
            memcpy(to, (const char *)&step->health[i] + info->offset, bytes);
    hsize_t start[2] = {(hsize_t)s->first}, count[2] = {(hsize_t)s->n, FD_TOP_K},
            extent[2] = {start[0] + count[0], FD_TOP_K};
    return H5Dset_extent(writer->health[c], extent) >= 0 &&
           fd_h5_write_block(writer->health[c], info->is_int ? H5T_NATIVE_INT32 : H5T_NATIVE_FLOAT, 1 + info->n_extra,
                             start, count, s->rows);
}

static bool append_health(const fd_trace_writer *writer, span *s) {
    size_t heads = (size_t)writer->graph->hparams.n_layer * (size_t)writer->graph->hparams.n_head;
    bool ok = true;
    for (int c = 0; ok && c < FD_HEALTH_COUNT; c++)
        if (writer->health[c] >= 0 && fd_health_columns[c].n_extra < 2) ok = append_column(writer, s, c);
    return ok &&
           append(s, writer->health[FD_HEALTH_ENTROPY], H5T_NATIVE_FLOAT, offsetof(fd_trace_pending, entropy),
                  4 * heads) &&
           append(s, writer->health[FD_HEALTH_SINK], H5T_NATIVE_FLOAT, offsetof(fd_trace_pending, sink), 4 * heads);
}

static bool append_tables(const fd_trace_writer *writer, span *s) {
    size_t n_node = (size_t)writer->graph->n_node,
           heads = (size_t)writer->graph->hparams.n_layer * (size_t)writer->graph->hparams.n_head;
    size_t widest = n_node * sizeof(fd_trace_stats); /* more than fingerprints and a column of health take */
    if (4 * heads > widest) widest = 4 * heads;
    if (4 * FD_TOP_K > widest) widest = 4 * FD_TOP_K;
    s->rows = malloc((size_t)s->n * widest);
    bool ok = s->rows &&
              append(s, writer->tokens, H5T_NATIVE_INT32, offsetof(fd_trace_pending, tokens), sizeof(int32_t)) &&
              append(s, writer->fingerprints, H5T_NATIVE_UINT64, offsetof(fd_trace_pending, fingerprints),
                     n_node * sizeof(fd_fingerprint)) &&
              append(s, writer->stats, H5T_NATIVE_DOUBLE, offsetof(fd_trace_pending, stats),
                     n_node * sizeof(fd_trace_stats)) &&
              append_health(writer, s);
    free(s->rows);
    return ok;
}

static bool append_steps(fd_trace_writer *writer, const fd_trace_pending *steps) {
    hsize_t start = (hsize_t)writer->n_written, count = 0;
    for (const fd_trace_pending *step = steps; step; step = step->next) count++;
    fd_step_row *rows = malloc(count * sizeof *rows);
    if (!rows) return false;
    hsize_t i = 0, extent = start + count;
    for (const fd_trace_pending *step = steps; step; step = step->next)
        rows[i++] = (fd_step_row){step->pos0, step->n_tok, (int32_t)step->kind, (int32_t)step->level};
    hid_t type = fd_step_row_type();
    bool ok =
        H5Dset_extent(writer->steps, &extent) >= 0 && fd_h5_write_block(writer->steps, type, 1, &start, &count, rows);
    fd_h5_release(type);
    free(rows);
    writer->n_written += (int32_t)count;
    return ok;
}

static bool flush(const fd_trace_writer *writer) {
    return H5Fflush(writer->root, H5F_SCOPE_LOCAL) >= 0 && writer->file->target.error == 0;
}

static bool refuse(const fd_trace_writer *writer, fd_error *err) {
    fd_h5_target_fail(&writer->file->target, err, "%s: cannot write step %d", writer->path, writer->n_written);
    return false;
}

/* The rows in /steps are what makes steps count: they follow in a flush of their own, when all else is on disk. */
bool fd_trace_commit_tables(fd_trace_writer *writer, const fd_trace_pending *steps, fd_error *err) {
    span s = {.steps = steps, .first = steps->pos0};
    for (const fd_trace_pending *step = steps; step; step = step->next) s.n += step->n_tok;
    return (writer->file->target.error == 0 && append_tables(writer, &s) && flush(writer)) || refuse(writer, err);
}

bool fd_trace_commit(fd_trace_writer *writer, const fd_trace_pending *steps, fd_error *err) {
    return (append_steps(writer, steps) && flush(writer)) || refuse(writer, err);
}

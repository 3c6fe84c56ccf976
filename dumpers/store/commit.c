/* Steps become part of the file: what they add to the small tables, and the flushes that make them count. Several steps
 * that ended while the one before them was written go together. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/store.h"

/* Positions [first, first + n), of a chain of steps. */
typedef struct positions {
    const fd_store_step *steps;
    int32_t first, n;
    char *rows; /* room for the widest table's rows */
} positions;

/* Appends the rows that every step has at `offset` of fd_store_step, `bytes` a position. */
static bool append_rows(positions *s, hid_t set, hid_t type, size_t offset, size_t bytes) {
    fd_h5_shape shape;
    char *to = s->rows;
    if (set < 0) return true;
    if (!fd_h5_shape_of(set, &shape)) return false;
    for (const fd_store_step *step = s->steps; step; step = step->next) {
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
static bool append_column(const fd_store *store, positions *s, int c) {
    const fd_health_info *info = &fd_health_columns[c];
    size_t bytes = 4 * (info->n_extra == 1 ? (size_t)FD_TOP_K : 1);
    char *to = s->rows;
    for (const fd_store_step *step = s->steps; step; step = step->next)
        for (int32_t i = 0; i < step->n_tok; i++, to += bytes)
            memcpy(to, (const char *)&step->health[i] + info->offset, bytes);
    hsize_t start[2] = {(hsize_t)s->first}, count[2] = {(hsize_t)s->n, FD_TOP_K},
            extent[2] = {start[0] + count[0], FD_TOP_K};
    return H5Dset_extent(store->health[c], extent) >= 0 &&
           fd_h5_write_block(store->health[c], info->is_int ? H5T_NATIVE_INT32 : H5T_NATIVE_FLOAT, 1 + info->n_extra,
                             start, count, s->rows);
}

static bool append_health(const fd_store *store, positions *s, size_t heads) {
    bool ok = true;
    for (int c = 0; ok && c < FD_HEALTH_COUNT; c++)
        if (store->health[c] >= 0 && fd_health_columns[c].n_extra < 2) ok = append_column(store, s, c);
    return ok &&
           append_rows(s, store->health[FD_HEALTH_ENTROPY], H5T_NATIVE_FLOAT, offsetof(fd_store_step, entropy),
                       heads) &&
           append_rows(s, store->health[FD_HEALTH_SINK], H5T_NATIVE_FLOAT, offsetof(fd_store_step, sink), heads);
}

static bool append_all(const fd_store *store, positions *s) {
    size_t n = (size_t)store->n_tensor, prints = n * sizeof(fd_fingerprint), stats = n * sizeof(fd_trace_stats);
    size_t heads = 4 * (size_t)store->options.n_layer * (size_t)store->options.n_head;
    size_t widest = 4 * FD_TOP_K;
    if (prints > widest) widest = prints;
    if (store->stats >= 0 && stats > widest) widest = stats;
    if (heads > widest) widest = heads;
    s->rows = malloc((size_t)s->n * widest);
    bool ok = s->rows &&
              append_rows(s, store->tokens, H5T_NATIVE_INT32, offsetof(fd_store_step, tokens), sizeof(int32_t)) &&
              append_rows(s, store->fingerprints, H5T_NATIVE_UINT64, offsetof(fd_store_step, fingerprints), prints) &&
              append_rows(s, store->stats, H5T_NATIVE_DOUBLE, offsetof(fd_store_step, stats), stats) &&
              append_health(store, s, heads);
    free(s->rows);
    return ok;
}

static bool append_to_steps(fd_store *store, const fd_store_step *steps) {
    hsize_t start = (hsize_t)store->n_step, count = 0;
    int32_t n_pos = store->n_pos;
    for (const fd_store_step *step = steps; step; step = step->next) count++;
    fd_step_row *rows = malloc(count * sizeof *rows);
    if (!rows) return false;
    hsize_t i = 0, extent = start + count;
    for (const fd_store_step *step = steps; step; step = step->next) {
        rows[i++] = (fd_step_row){step->pos0, step->n_tok, (int32_t)step->kind, (int32_t)step->level};
        n_pos = step->pos0 + step->n_tok;
    }
    hid_t type = fd_h5_type_make(&fd_step_row_type);
    bool ok =
        H5Dset_extent(store->steps, &extent) >= 0 && fd_h5_write_block(store->steps, type, 1, &start, &count, rows);
    fd_h5_release(type);
    free(rows);
    store->n_step += (int32_t)count;
    store->n_pos = n_pos;
    return ok;
}

static bool flush(const fd_store *store) {
    return H5Fflush(store->root, H5F_SCOPE_LOCAL) >= 0 && store->file->target.error == 0;
}

static fd_code refuse(const fd_store *store, fd_error *err) {
    return fd_h5_target_fail(&store->file->target, err, "%s: cannot write step %d", store->file->path, store->n_step);
}

fd_code fd_store_append_tables(fd_store *store, const fd_store_step *steps, fd_error *err) {
    positions s = {.steps = steps, .first = steps->pos0};
    for (const fd_store_step *step = steps; step; step = step->next) s.n += step->n_tok;
    FD_TRY(fd_store_enter_tensors(store, err));
    bool ok = store->file->target.error == 0 && append_all(store, &s) && flush(store);
    return ok ? FD_OK : refuse(store, err);
}

fd_code fd_store_append_steps(fd_store *store, const fd_store_step *steps, fd_error *err) {
    return append_to_steps(store, steps) && flush(store) ? FD_OK : refuse(store, err);
}

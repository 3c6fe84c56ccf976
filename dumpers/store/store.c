#include "dumpers/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/hdf5/disk_room.h"
#include "dumpers/store/chunks.h"
#include "dumpers/store/datasets.h"

enum { MAX_TENSORS = 1 << 20 };

fd_code fd_store_refuse(const fd_store *store, fd_error *err, const char *what) {
    return fd_h5_target_fail(&store->file->target, err, "%s: %s", store->file->path, what);
}

fd_code fd_store_room(const fd_store *store, int64_t bytes, fd_error *err) {
    const fd_h5_target *target = &store->file->target;
    return fd_disk_room(target->fd, store->file->path, (int64_t)target->end, bytes, err);
}

static fd_code out_of_memory(const fd_store *store, fd_error *err) {
    return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", store->options.path);
}

void fd_store_step_free(fd_store_step *step) {
    if (!step) return;
    free(step->tokens);
    free(step->fingerprints);
    free(step->stats);
    free(step->health);
    free(step->entropy);
    free(step->sink);
    free(step);
}

/* ---- open datasets ---- */

static void forget_ids(fd_store *store) {
    store->root = store->tokens = store->steps = store->fingerprints = store->stats = -1;
    for (int c = 0; c < FD_HEALTH_COUNT; c++) store->health[c] = -1;
    for (int32_t i = 0; i < store->n_tensor; i++) store->tensors[i].id = -1;
}

/* True when all of it reached the disk. The file of several traces stays open. */
static bool close_all(fd_store *store) {
    bool ok = true;
    if (store->file && store->owns_file) {
        ok = fd_trace_file_close(store->file);
    } else if (store->root >= 0) {
        for (int32_t i = 0; i < store->n_tensor; i++) fd_h5_release(store->tensors[i].id);
        for (int c = 0; c < FD_HEALTH_COUNT; c++) fd_h5_release(store->health[c]);
        const hid_t ids[] = {store->tokens, store->steps, store->fingerprints, store->stats, store->root};
        for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) fd_h5_release(ids[i]);
        ok = store->file->target.error == 0;
    }
    forget_ids(store);
    return ok;
}

static bool open_table(const fd_store *store, const char *name, hid_t *set) {
    if (*set < 0 && fd_h5_has(store->root, name)) *set = fd_trace_open_set(store->root, name);
    return *set >= 0;
}

/* All but the datasets of /tensors, which are opened when they are first written. */
static bool open_tables(fd_store *store) {
    char name[80];
    bool ok =
        open_table(store, "tokens", &store->tokens) && open_table(store, "steps", &store->steps) &&
        (store->n_in_graph == 0 || open_table(store, "fingerprints", &store->fingerprints)) &&
        (store->options.level < FD_TRACE_STATS || !store->options.health || open_table(store, "stats", &store->stats));
    for (int c = 0; ok && store->options.health && c < FD_HEALTH_COUNT; c++) {
        bool heads = store->options.n_layer > 0 && store->options.n_head > 0;
        if (fd_health_columns[c].n_extra == 2 && !heads) continue;
        snprintf(name, sizeof name, "health/%s", fd_health_columns[c].name);
        ok = open_table(store, name, &store->health[c]);
    }
    return ok;
}

static bool open_tensor(const fd_store *store, fd_store_tensor *tensor) {
    char name[80];
    if (tensor->id >= 0) return true;
    snprintf(name, sizeof name, "tensors/%s", tensor->row.name);
    tensor->id = fd_trace_open_set(store->root, name);
    return tensor->id >= 0;
}

/* ---- the empty trace ---- */

static hid_t make_group(hid_t file, const char *name) {
    hid_t link = H5Pcreate(H5P_LINK_CREATE), create = H5Pcreate(H5P_GROUP_CREATE);
    H5Pset_create_intermediate_group(link, 1);
    H5Pset_attr_phase_change(create, 64, 32); /* as of the root of a file */
    hid_t group = H5Gcreate2(file, name, link, create, H5P_DEFAULT);
    fd_h5_release(link);
    fd_h5_release(create);
    return group;
}

static fd_code fill_empty(fd_store *store, const fd_trace_info *info, fd_error *err) {
    const fd_store_options *o = &store->options;
    store->root = store->owns_file ? store->file->id : make_group(store->file->id, o->group);
    bool ok = store->root >= 0 && fd_trace_put_info(store->root, info, o->level) &&
              fd_trace_make_lists(store->root, o->n_pos) &&
              (!o->health || fd_trace_make_health(store->root, o->n_layer, o->n_head, o->n_pos));
    return ok ? FD_OK : fd_store_refuse(store, err, "cannot create the trace");
}

fd_code fd_store_create(const fd_store_options *options, const fd_trace_info *info, fd_trace_file *file, bool owns_file,
                        fd_queue *queue, fd_store **out, fd_error *err) {
    fd_trace_info started = *info;
    fd_trace_now(started.started);
    started.finished[0] = '\0';
    fd_store *store = *out = calloc(1, sizeof *store);
    if (!store) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", options->path);
    store->options = *options;
    store->file = file;
    store->owns_file = owns_file;
    store->queue = queue;
    store->growing = true;
    forget_ids(store);
    return fill_empty(store, &started, err);
}

/* ---- adding tensors ---- */

/* Datasets can be added again: to a copy, while the file at the path stays as it is. */
static fd_code begin_copy(fd_store *store, fd_error *err) {
    if (store->growing) return FD_OK;
    if (!close_all(store)) return fd_store_refuse(store, err, "cannot be closed to add a tensor");
    FD_TRY(fd_trace_file_begin_copy(store->file, err));
    store->growing = true;
    store->root = store->file->id;
    return open_tables(store) ? FD_OK : fd_store_refuse(store, err, "cannot be opened to add a tensor");
}

static bool room_for_one(fd_store *store) {
    if (store->n_tensor < store->room) return true;
    int32_t room = store->room ? 2 * store->room : 256;
    fd_store_tensor *tensors = realloc(store->tensors, (size_t)room * sizeof *tensors);
    if (!tensors) return false;
    store->tensors = tensors;
    store->room = room;
    return true;
}

fd_code fd_store_add(fd_store *store, const fd_graph_row *row, uint32_t dtype, bool stored, fd_error *err) {
    if (store->n_tensor == MAX_TENSORS) return fd_store_refuse(store, err, "too many tensors");
    FD_TRY(begin_copy(store, err));
    if (!room_for_one(store)) return out_of_memory(store, err);
    fd_store_tensor *tensor = &store->tensors[store->n_tensor];
    *tensor = (fd_store_tensor){.row = *row, .form = fd_graph_row_form(row, dtype), .stored = stored, .id = -1};
    if (!fd_chunks_begin(store, tensor)) return out_of_memory(store, err);
    if (stored && (!fd_trace_make_tensor(store->root, row, store->n_tensor, &tensor->form, store->options.compress) ||
                   store->file->target.error != 0))
        return fd_h5_target_fail(&store->file->target, err, "%s: tensor %s: cannot be added", store->file->path,
                                 row->name);
    store->n_tensor++;
    return FD_OK;
}

fd_code fd_store_add_weight(fd_store *store, const fd_weight_rows *rows, fd_error *err) {
    FD_TRY(begin_copy(store, err));
    hid_t group = fd_weights_group(store->root);
    bool ok = group >= 0 && fd_weight_put(group, rows, store->n_weight) && store->file->target.error == 0;
    fd_h5_release(group);
    store->n_weight++;
    if (ok) return FD_OK;
    return fd_h5_target_fail(&store->file->target, err, "%s: weight %s: cannot be added", store->file->path,
                             rows->name);
}

/* The fingerprints of the committed steps with a column for each tensor that there is now; those of new ones are 0. */
static bool widen_fingerprints(fd_store *store) {
    size_t n_pos = (size_t)store->n_pos, n_old = (size_t)store->n_in_graph, n = (size_t)store->n_tensor;
    hsize_t start[3] = {0}, old_extent[3] = {n_pos, n_old, 2}, extent[3] = {n_pos, n, 2};
    fd_fingerprint *old = calloc(n_pos * n_old + 1, sizeof *old), *table = calloc(n_pos * n + 1, sizeof *table);
    bool ok = old && table;
    if (ok && n_pos * n_old > 0)
        ok = fd_h5_read_block(store->fingerprints, H5T_NATIVE_UINT64, 3, start, old_extent, old);
    for (size_t p = 0; ok && p < n_pos; p++) memcpy(table + p * n, old + p * n_old, n_old * sizeof *table);
    fd_h5_release(store->fingerprints);
    store->fingerprints = -1;
    if (ok && n_old > 0) ok = H5Ldelete(store->root, "fingerprints", H5P_DEFAULT) >= 0;
    ok = ok && fd_trace_make_fingerprints(store->root, store->n_tensor, store->options.n_pos) &&
         open_table(store, "fingerprints", &store->fingerprints);
    if (ok && n_pos > 0)
        ok = H5Dset_extent(store->fingerprints, extent) >= 0 &&
             fd_h5_write_block(store->fingerprints, H5T_NATIVE_UINT64, 3, start, extent, table);
    free(old);
    free(table);
    return ok;
}

static bool write_graph(const fd_store *store) {
    fd_graph_row *rows = calloc((size_t)store->n_tensor, sizeof *rows);
    bool ok = rows && (store->n_in_graph == 0 || H5Ldelete(store->root, "graph", H5P_DEFAULT) >= 0);
    for (int32_t i = 0; ok && i < store->n_tensor; i++) rows[i] = store->tensors[i].row;
    ok = ok && fd_trace_make_graph(store->root, rows, store->n_tensor,
                                   store->options.compress || store->options.compress_graph);
    free(rows);
    return ok;
}

fd_code fd_store_enter_tensors(fd_store *store, fd_error *err) {
    if (store->n_tensor == store->n_in_graph) return FD_OK;
    bool stats = store->options.level >= FD_TRACE_STATS && store->options.health;
    bool ok = write_graph(store) && widen_fingerprints(store) &&
              (!stats || fd_trace_make_stats(store->root, store->n_tensor, store->options.n_pos));
    store->n_in_graph = store->n_tensor;
    return ok && open_tables(store) ? FD_OK : fd_store_refuse(store, err, "cannot create the trace");
}

fd_code fd_store_publish(fd_store *store, fd_error *err) {
    if (!store->growing) return FD_OK;
    FD_TRY(fd_store_enter_tensors(store, err));
    if (store->owns_file) {
        forget_ids(store);
        FD_TRY(fd_trace_file_publish(store->file, err));
        store->root = store->file->id;
        store->growing = false;
    }
    return open_tables(store) ? FD_OK : fd_store_refuse(store, err, "cannot create the trace");
}

/* ---- rows ---- */

bool fd_store_extend(fd_store *store, fd_store_tensor *tensor, int32_t end) {
    if (!open_tensor(store, tensor)) return false;
    if (tensor->extent >= end) return true;
    /* Not along keys: at the end HDF5 cuts what is too much, and would fill a part of every chunk in the last
     * column. */
    if (!tensor->form.over_kv && end < INT32_MAX - FD_TRACE_EXTEND_BY)
        end = (end + FD_TRACE_EXTEND_BY - 1) / FD_TRACE_EXTEND_BY * FD_TRACE_EXTEND_BY;
    hsize_t extent[FD_H5_MAX_RANK];
    fd_form_extent(&tensor->form, end, end, extent);
    tensor->extent = end;
    return H5Dset_extent(tensor->id, extent) >= 0;
}

/* ---- the end ---- */

/* Row r is position r everywhere: tensors whose last rows were not recorded get them as fill. */
static bool pad_to_length(fd_store *store) {
    for (int32_t i = 0; i < store->n_in_graph; i++) {
        fd_store_tensor *tensor = &store->tensors[i];
        hsize_t extent[FD_H5_MAX_RANK];
        if (!tensor->stored) continue;
        fd_form_extent(&tensor->form, store->n_pos, store->n_pos, extent);
        if (!open_tensor(store, tensor) || H5Dset_extent(tensor->id, extent) < 0) return false;
    }
    return H5Fflush(store->root, H5F_SCOPE_LOCAL) >= 0 && store->file->target.error == 0;
}

/* Attributes cannot be written in single-writer mode: a file of its own is opened once more. Each of the two is one
 * block of the root's header, changed in place. A kill between that block and the string's leaves a `finished` with
 * nothing behind it; it counts only where `complete` is 1. */
static bool complete(fd_store *store) {
    char now[32];
    fd_trace_now(now);
    if (store->owns_file) {
        if (!close_all(store) || !fd_trace_file_reopen(store->file)) return false;
        store->root = store->file->id;
    }
    bool ok = fd_h5_put_string(store->root, "finished", now) && H5Fflush(store->root, H5F_SCOPE_LOCAL) >= 0 &&
              fd_h5_put_int(store->root, "complete", 1);
    return close_all(store) && ok;
}

fd_code fd_store_finish(fd_store *store, fd_error *err) {
    FD_TRY(fd_store_room(store, 1 << 20, err));
    return pad_to_length(store) && complete(store) ? FD_OK : fd_store_refuse(store, err, "cannot complete the trace");
}

void fd_store_abandon(fd_store *store) {
    if (!store) return;
    close_all(store);
    if (store->owns_file) fd_trace_file_abandon(store->file);
    fd_chunks_free(store);
    free(store->tensors);
    free(store);
}

/* The datasets of /tensors, and the two tables with a row or a column for each: /graph and /fingerprints. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/hdf5/disk_room.h"
#include "dumpers/client/tracer.h"

/* Whole rows, as few as fill 32 KiB, as firstdiff's own traces have them (docs/trace-format.md). */
int64_t fd_tracer_chunk_rows(const fd_tracer_set *set) {
    int64_t row = set->n_element * (int64_t)set->element * (set->over_kv ? FD_KV_CHUNK : 1);
    int64_t n = row >= 32768 ? 1 : (32768 + row - 1) / row;
    return n > 1024 ? 1024 : n;
}

static hid_t stored_type(uint32_t dtype) {
    return dtype == FD_F64 ? H5T_IEEE_F64LE : dtype == FD_F32 ? H5T_IEEE_F32LE : H5T_STD_U16LE;
}

static hid_t native_type(uint32_t dtype) {
    return dtype == FD_F64 ? H5T_NATIVE_DOUBLE : dtype == FD_F32 ? H5T_NATIVE_FLOAT : H5T_NATIVE_UINT16;
}

static void set_fill(hid_t create, const fd_tracer_set *set) {
    double value64 = !set->over_kv ? NAN : set->scores ? -INFINITY : 0.0;
    float value32 = !set->over_kv ? NAN : set->scores ? -INFINITY : 0.0f;
    bool half = set->dtype == FD_F16;
    uint16_t value16 = !set->over_kv ? (half ? 0x7e00 : 0x7fc0) : !set->scores ? 0 : half ? 0xfc00 : 0xff80;
    const void *value = set->element == 8   ? (const void *)&value64
                        : set->element == 4 ? (const void *)&value32
                                            : &value16;
    H5Pset_fill_value(create, native_type(set->dtype), value);
}

/* Rows go straight to the file: a step writes whole rows once, and a chunk cache for each of hundreds of tensors would
 * only hold memory. */
static hid_t open_uncached(hid_t file, const char *name) {
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(access, 1, 0, 1.0);
    hid_t set = H5Dopen2(file, name, access);
    fd_h5_release(access);
    return set;
}

static bool open_set(const fd_tracer *tracer, fd_tracer_set *set) {
    char path[80];
    snprintf(path, sizeof path, "tensors/%s", set->name);
    set->id = open_uncached(tracer->file, path);
    return set->id >= 0;
}

bool fd_tracer_open_sets(fd_tracer *tracer) {
    tracer->tokens = open_uncached(tracer->file, "tokens");
    tracer->steps = open_uncached(tracer->file, "steps");
    bool ok = tracer->tokens >= 0 && tracer->steps >= 0;
    for (int32_t i = 0; ok && i < tracer->n_in_graph; i++) ok = open_set(tracer, &tracer->sets[i]);
    if (ok && tracer->n_in_graph > 0) ok = (tracer->fingerprints = open_uncached(tracer->file, "fingerprints")) >= 0;
    return ok;
}

static bool create_set(const fd_tracer *tracer, fd_tracer_set *set) {
    hsize_t dim[1 + FD_TRACER_ROW_DIM] = {0}, max[1 + FD_TRACER_ROW_DIM] = {H5S_UNLIMITED};
    hsize_t chunk[1 + FD_TRACER_ROW_DIM] = {(hsize_t)fd_tracer_chunk_rows(set)};
    for (int d = 0; d < set->n_dim; d++) {
        bool along_kv = set->over_kv && d == set->n_dim - 1;
        dim[1 + d] = (hsize_t)set->shape[d];
        max[1 + d] = along_kv ? H5S_UNLIMITED : dim[1 + d];
        chunk[1 + d] = along_kv ? FD_KV_CHUNK : dim[1 + d];
    }
    hid_t space = H5Screate_simple(1 + set->n_dim, dim, max), create = H5Pcreate(H5P_DATASET_CREATE);
    hid_t links = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_char_encoding(links, H5T_CSET_UTF8);
    H5Pset_chunk(create, 1 + set->n_dim, chunk);
    H5Pset_obj_track_times(create, false);
    set_fill(create, set);
    char path[80];
    snprintf(path, sizeof path, "tensors/%s", set->name);
    hid_t id = H5Dcreate2(tracer->file, path, stored_type(set->dtype), space, links, create, H5P_DEFAULT);
    bool ok = id >= 0 && fd_h5_put_string(id, "dtype", fd_dtype_get(set->dtype)->name) &&
              fd_h5_put_int(id, "seq", (int32_t)(set - tracer->sets)) &&
              (!set->over_kv || fd_h5_put_int(id, "over_kv", 1));
    fd_h5_release(links);
    fd_h5_release(create);
    fd_h5_release(space);
    fd_h5_release(id);
    return ok;
}

/* Every chunk that the rows touch for the first time, and HDF5's index of them. */
static int64_t bytes_of(const fd_tracer *tracer, const fd_tracer_set *set) {
    int64_t rows = fd_tracer_chunk_rows(set), end = tracer->pos0 + tracer->n_tok, first = tracer->pos0 / rows;
    if (!set->over_kv && set->extent > first * rows) first++; /* begun in an earlier step */
    int64_t across = set->over_kv ? (end + FD_KV_CHUNK - 1) / FD_KV_CHUNK : 1;
    int64_t chunk = rows * set->n_element * (int64_t)set->element * (set->over_kv ? FD_KV_CHUNK : 1);
    int64_t n = (end + rows - 1) / rows - first;
    return (n > 0 ? n : 0) * across * (chunk + 64) + 4096;
}

fd_code fd_tracer_make_room(fd_tracer *tracer, fd_error *err) {
    int64_t bytes = 0;
    for (int32_t i = 0; i < tracer->n_set; i++)
        if (tracer->sets[i].rows) bytes += bytes_of(tracer, &tracer->sets[i]);
    if (tracer->file < 0) FD_TRY(fd_tracer_grow(tracer, err));
    return fd_disk_room(tracer->target.fd, tracer->path, bytes, err);
}

static bool extend(const fd_tracer_set *set, int64_t rows, int64_t keys) {
    hsize_t extent[1 + FD_TRACER_ROW_DIM] = {(hsize_t)rows};
    for (int d = 0; d < set->n_dim; d++)
        extent[1 + d] = set->over_kv && d == set->n_dim - 1 ? (hsize_t)keys : (hsize_t)set->shape[d];
    return H5Dset_extent(set->id, extent) >= 0;
}

static bool write_run(const fd_tracer *tracer, const fd_tracer_set *set, int64_t from, int64_t n) {
    hsize_t start[1 + FD_TRACER_ROW_DIM] = {(hsize_t)(tracer->pos0 + from)};
    hsize_t count[1 + FD_TRACER_ROW_DIM] = {(hsize_t)n};
    int64_t keys = tracer->pos0 + tracer->n_tok, row = set->n_element * (set->over_kv ? keys : 1);
    for (int d = 0; d < set->n_dim; d++)
        count[1 + d] = set->over_kv && d == set->n_dim - 1 ? (hsize_t)keys : (hsize_t)set->shape[d];
    return fd_h5_write_block(set->id, native_type(set->dtype), 1 + set->n_dim, start, count,
                             set->rows + (size_t)(from * row) * set->element);
}

fd_code fd_tracer_write_rows(fd_tracer *tracer, fd_tracer_set *set, fd_error *err) {
    int64_t keys = tracer->pos0 + tracer->n_tok, row = set->n_element * (set->over_kv ? keys : 1), last = 0;
    if (set->id < 0) {
        FD_TRY(fd_tracer_grow(tracer, err));
        if ((!create_set(tracer, set) || !open_set(tracer, set)))
            return fd_h5_target_fail(&tracer->target, err, "%s: tensor %s: cannot be added", tracer->path, set->name);
    }
    for (int64_t r = 0; r < tracer->n_tok; r++)
        if (set->held[r]) {
            set->prints[r] =
                fd_tracer_print(set, set->rows + (size_t)(r * row) * set->element, tracer->pos0 + r + 1, keys);
            last = r;
        }
    bool ok = tracer->target.error == 0;
    if (ok && tracer->pos0 + last + 1 > set->extent) {
        set->extent = tracer->pos0 + last + 1;
        ok = extend(set, set->extent, keys);
    }
    for (int64_t r = 0; ok && r < tracer->n_tok; r++) {
        int64_t n = 0;
        while (r + n < tracer->n_tok && set->held[r + n]) n++;
        if (n > 0) ok = write_run(tracer, set, r, n);
        r += n;
    }
    if (ok && tracer->target.error == 0) return FD_OK;
    return fd_h5_target_fail(&tracer->target, err, "%s: tensor %s: cannot be written", tracer->path, set->name);
}

/* Tensors whose last rows were not recorded get them as fill: row r is position r everywhere. */
bool fd_tracer_even_out(fd_tracer *tracer) {
    for (int32_t i = 0; i < tracer->n_in_graph; i++)
        if (!extend(&tracer->sets[i], tracer->pos0, tracer->pos0)) return false;
    return true;
}

/* ---- the tables ---- */

static int32_t layer_of(const char *name) {
    int layer, end = 0;
    bool is = sscanf(name, "blk.%9d.%n", &layer, &end) == 1 && end > 0 && name[4] >= '0' && name[4] <= '9';
    return is ? layer : -1;
}

static void fill_row(const fd_tracer_set *set, int32_t seq, fd_graph_row *row) {
    row->seq = seq;
    strcpy(row->name, set->name);
    row->layer = layer_of(set->name);
    row->n_dim = set->n_dim;
    for (int d = 0; d < set->n_dim; d++) row->shape[d] = (int32_t)set->shape[d];
    row->over_kv = set->over_kv;
    snprintf(row->dtype, sizeof row->dtype, "%s", fd_dtype_get(set->dtype)->name);
}

static bool write_nodes(const fd_tracer *tracer) {
    hsize_t n = (hsize_t)tracer->n_set;
    fd_graph_row *rows = calloc(n, sizeof *rows);
    if (!rows) return false;
    for (int32_t i = 0; i < tracer->n_set; i++) fill_row(&tracer->sets[i], i, &rows[i]);
    hid_t memory = fd_graph_row_type(), packed = H5Tcopy(memory), space = H5Screate_simple(1, &n, NULL);
    H5Tpack(packed);
    hid_t set = H5Dcreate2(tracer->file, "graph", packed, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    bool ok = set >= 0 && H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows) >= 0;
    free(rows);
    fd_h5_release(set);
    fd_h5_release(space);
    fd_h5_release(packed);
    fd_h5_release(memory);
    return ok;
}

/* [pos0, n_in_graph, 2], the fingerprints of the finished steps. */
static bool read_prints(const fd_tracer *tracer, fd_fingerprint *out) {
    hsize_t start[3] = {0}, count[3] = {(hsize_t)tracer->pos0, (hsize_t)tracer->n_in_graph, 2};
    if (tracer->pos0 == 0 || tracer->n_in_graph == 0) return true;
    return fd_h5_read_block(tracer->fingerprints, H5T_NATIVE_UINT64, 3, start, count, out);
}

static bool make_prints(fd_tracer *tracer, const fd_fingerprint *old) {
    size_t n_pos = (size_t)tracer->pos0, n_old = (size_t)tracer->n_in_graph, n_set = (size_t)tracer->n_set;
    hsize_t dim[] = {n_pos, n_set, 2}, max[] = {H5S_UNLIMITED, n_set, 2}, start[3] = {0};
    hsize_t chunk[] = {16 * n_set >= 32768 ? 1 : 32768 / (16 * n_set), n_set, 2};
    hid_t space = H5Screate_simple(3, dim, max), create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(create, 3, chunk);
    H5Pset_obj_track_times(create, false);
    tracer->fingerprints =
        H5Dcreate2(tracer->file, "fingerprints", H5T_STD_U64LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
    fd_h5_release(create);
    fd_h5_release(space);
    fd_fingerprint *table = calloc(n_pos * n_set + 1, sizeof *table);
    bool ok = tracer->fingerprints >= 0 && table &&
              fd_h5_put_string(tracer->fingerprints, "description",
                               "[n_pos, n_node, (lo, hi)], nodes as in /graph; 0, 0: not recorded");
    for (size_t p = 0; ok && p < n_pos; p++) memcpy(table + p * n_set, old + p * n_old, n_old * sizeof *table);
    if (ok && n_pos > 0) ok = fd_h5_write_block(tracer->fingerprints, H5T_NATIVE_UINT64, 3, start, dim, table);
    free(table);
    return ok;
}

bool fd_tracer_write_graph(fd_tracer *tracer) {
    if (tracer->n_set == 0) return true;
    fd_fingerprint *old = calloc((size_t)tracer->pos0 * (size_t)tracer->n_in_graph + 1, sizeof *old);
    bool ok = old && read_prints(tracer, old);
    fd_h5_release(tracer->fingerprints);
    tracer->fingerprints = -1;
    if (ok && tracer->n_in_graph > 0)
        ok = H5Ldelete(tracer->file, "graph", H5P_DEFAULT) >= 0 &&
             H5Ldelete(tracer->file, "fingerprints", H5P_DEFAULT) >= 0;
    ok = ok && write_nodes(tracer) && make_prints(tracer, old);
    free(old);
    if (ok) tracer->n_in_graph = tracer->n_set;
    return ok;
}

/* Hashes of rows as they come, and their dataset: what a trace's writer needs without a model. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdlib.h>
#include <string.h>

#include "dumpers/hdf5/h5.h"
#include "dumpers/store/weights.h"

int32_t fd_weight_rows_per_hash(int64_t n_row, int32_t most) {
    return n_row <= most ? 1 : (int32_t)((n_row + most - 1) / most);
}

void fd_weight_rows_free(fd_weight_rows *rows) {
    free(rows->hashes);
    rows->hashes = NULL;
    rows->n_hash = 0;
}

bool fd_row_is_zero(const float *row, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (row[i] != 0.0f) return false;
    return true;
}

fd_code fd_row_hasher_begin(fd_row_hasher *hasher, const char *name, const char *dtype, int64_t n_row, int64_t n_col,
                            fd_error *err) {
    *hasher = (fd_row_hasher){.rows = {.n_row = n_row, .n_col = n_col}};
    fd_weight_rows *rows = &hasher->rows;
    rows->rows_per_hash = fd_weight_rows_per_hash(n_row, FD_MAX_WEIGHT_HASHES);
    strncpy(rows->name, name, sizeof rows->name - 1);
    strncpy(rows->dtype, dtype, sizeof rows->dtype - 1);
    size_t most = (size_t)((n_row + rows->rows_per_hash - 1) / rows->rows_per_hash);
    rows->hashes = malloc(sizeof *rows->hashes * most);
    hasher->state = XXH3_createState();
    if (rows->hashes && hasher->state) return FD_OK;
    fd_row_hasher_abandon(hasher);
    return fd_fail(err, FD_ERR_MEMORY, "hashes of weight %s: out of memory", name);
}

void fd_row_hasher_add(fd_row_hasher *hasher, const float *row) {
    fd_weight_rows *rows = &hasher->rows;
    if (hasher->n % rows->rows_per_hash == 0) XXH3_64bits_reset(hasher->state);
    XXH3_64bits_update(hasher->state, row, sizeof *row * (size_t)rows->n_col);
    hasher->n++;
    if (hasher->n % rows->rows_per_hash == 0 || hasher->n == rows->n_row)
        rows->hashes[rows->n_hash++] = XXH3_64bits_digest(hasher->state);
    bool zero = fd_row_is_zero(row, rows->n_col);
    rows->n_zero_row += zero;
    rows->n_trailing_zero_row = zero ? rows->n_trailing_zero_row + 1 : 0;
}

fd_weight_rows fd_row_hasher_end(fd_row_hasher *hasher) {
    fd_weight_rows rows = hasher->rows;
    XXH3_freeState(hasher->state);
    *hasher = (fd_row_hasher){0};
    return rows;
}

void fd_row_hasher_abandon(fd_row_hasher *hasher) {
    fd_weight_rows rows = fd_row_hasher_end(hasher);
    fd_weight_rows_free(&rows);
}

hid_t fd_weights_group(hid_t root) {
    if (fd_h5_has(root, "weights")) return H5Gopen2(root, "weights", H5P_DEFAULT);
    hid_t group = H5Gcreate2(root, "weights", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (group < 0 || fd_h5_put_string(group, "description",
                                      "XXH3-64 of the little-endian float32 values of rows_per_hash dequantised rows"))
        return group;
    fd_h5_release(group);
    return -1;
}

bool fd_weight_put(hid_t group, const fd_weight_rows *w, int32_t seq) {
    hsize_t n = (hsize_t)w->n_hash;
    if (fd_h5_has(group, w->name) && H5Ldelete(group, w->name, H5P_DEFAULT) < 0) return false;
    hid_t space = H5Screate_simple(1, &n, NULL), create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(create, false);
    hid_t set = H5Dcreate2(group, w->name, H5T_STD_U64LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
    bool ok = set >= 0 && H5Dwrite(set, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, w->hashes) >= 0;
    const struct {
        const char *name;
        int64_t value; /* -1: not recorded */
    } integers[] = {{"n_row", w->n_row},
                    {"n_col", w->n_col > 0 ? w->n_col : -1},
                    {"rows_per_hash", w->rows_per_hash},
                    {"n_zero_row", w->n_zero_row},
                    {"n_trailing_zero_row", w->n_trailing_zero_row},
                    {"seq", seq}};
    ok = ok && fd_h5_put_string(set, "dtype", w->dtype);
    for (size_t i = 0; ok && i < sizeof integers / sizeof *integers; i++)
        if (integers[i].value >= 0) ok = fd_h5_put_int(set, integers[i].name, (int32_t)integers[i].value);
    fd_h5_release(create);
    fd_h5_release(space);
    fd_h5_release(set);
    return ok;
}

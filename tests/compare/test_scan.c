/* Reading raw and in parallel changes no verdict: the same tensors, stored so that they can be read raw and so that
 * only the library can read them, compared with each other in every combination. */
#include <criterion/criterion.h>
#include <hdf5.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare.h"
#include "dumpers/hdf5/h5.h"
#include "dumpers/store/place.h"
#include "model/gguf/quant.h"
#include "tests/compare/scan_file.h"

enum { N_TENSOR = 5, N_POS = 37, N_HEAD = 3 };

/* One tensor's rows take several blocks. */
static hsize_t width_of(int t) {
    return t == 1 ? 17000 : 900;
}

typedef enum storage { BLOCKS, ROWS, TILES, GZIP, NBIT, N_STORAGE } storage; /* NBIT: through the library */
typedef enum element { F32, F64, F16, BF16, HALF, N_ELEMENT } element;       /* HALF: h5py's own float16 */
static const char *const storage_names[] = {"blocks", "rows", "tiles", "gzip", "nbit"};
static const char *const element_names[] = {"F32", "F64", "F16", "BF16", "half"};

typedef struct change { /* of one element of tensor `tensor`; over keys: at head 1, key 2 */
    const char *name;
    int tensor, pos;
    float before, after;
    bool padding; /* beyond the last key: no element of the tensor */
} change;

static const change changes[] = {
    {"none", 0, 0, 1, 1, false},
    {"first element's row", 0, 0, 1, 2, false},
    {"last tensor, last position", N_TENSOR - 1, N_POS - 1, 1, 1.5f, false},
    {"in the middle", 2, 17, 1, -1, false},
    {"a new NaN", 1, 5, 1, NAN, false},
    {"the same NaN", 1, 5, NAN, NAN, false},
    {"an infinity lost", 3, 30, INFINITY, 1, false},
    {"minus zero", 2, 9, 0, -0.0f, false},
    {"over keys", 4, 20, 1, 3, false},
    {"padding over keys", 4, 3, 1, 9, true},
};

static hid_t half_type(void) {
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(type, 15, 10, 5, 0, 10);
    H5Tset_size(type, 2);
    H5Tset_ebias(type, 15);
    return type;
}

static void put(void *data, size_t i, element e, float x) {
    if (e == F32) ((float *)data)[i] = x;
    if (e == F64) ((double *)data)[i] = (double)x;
    if (e == F16 || e == HALF) ((uint16_t *)data)[i] = fd_f32_to_f16(x);
    if (e == BF16) ((uint16_t *)data)[i] = fd_f32_to_bf16(x);
}

static void write_tensor(hid_t group, int t, storage how, element e, const change *c, bool changed) {
    bool keys = t == N_TENSOR - 1;
    hsize_t dim[3] = {N_POS, keys ? N_HEAD : width_of(t), N_POS},
            chunk[3] = {how == TILES ? 5 : 4, how == TILES ? 2 : dim[1], 16};
    if (how == TILES && !keys) chunk[1] = 700;
    size_t row = keys ? N_HEAD * N_POS : width_of(t), n = N_POS * row;
    void *data = calloc(n, 8);
    for (size_t i = 0; i < n; i++) put(data, i, e, (float)((i * 7 + (size_t)t) % 1013) / 64.0f - 8.0f);
    size_t at = (size_t)c->pos * row + (keys ? N_POS + (c->padding ? (size_t)c->pos + 1 : 2) : row / 2);
    if (t == c->tensor) put(data, at, e, changed ? c->after : c->before);

    char name[32];
    snprintf(name, sizeof name, keys ? "t%d.attn_scores" : "t%d", t);
    hid_t space = H5Screate_simple(keys ? 3 : 2, dim, NULL), create = H5Pcreate(H5P_DATASET_CREATE);
    hid_t type = e == F32    ? H5Tcopy(H5T_IEEE_F32LE)
                 : e == F64  ? H5Tcopy(H5T_IEEE_F64LE)
                 : e == HALF ? half_type()
                             : H5Tcopy(H5T_STD_U16LE);
    if (how != BLOCKS) H5Pset_chunk(create, keys ? 3 : 2, chunk);
    if (how == GZIP) H5Pset_shuffle(create), H5Pset_deflate(create, 1);
    if (how == NBIT) H5Pset_nbit(create);
    hid_t set = H5Dcreate2(group, name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
    H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    if (e == F16 || e == BF16) fd_h5_put_string(set, "dtype", element_names[e]);
    fd_h5_put_int(set, "seq", t);
    H5Dclose(set);
    H5Tclose(type);
    H5Pclose(create);
    H5Sclose(space);
    free(data);
}

/* `changed`: the element is what it is after the change. */
static void write_trace(int to, storage how, element e, const change *c, bool changed) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (how == TILES) H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
    hid_t file = H5Fcreate(fd_scan_path(to), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    fd_scan_put_frame(file, N_POS);
    hid_t group = H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    for (int t = 0; t < N_TENSOR; t++) write_tensor(group, t, how, e, c, changed);
    H5Gclose(group);
    H5Pclose(access);
    H5Fclose(file);
}

/* Fills *raw with whether both files could be read raw. */
static void verdict_of(int ref, int cand, fd_verdict *out, bool *raw) {
    const int files[] = {ref, cand};
    fd_trace *traces[2];
    fd_error err = {0};
    fd_compare_options how = {0};
    *raw = true;
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(fd_trace_open(fd_scan_path(files[i]), &traces[i], &err), FD_OK, "%s", err.message);
        *raw =
            *raw && fd_trace_place(traces[i], 0) == FD_PLACED && fd_trace_place(traces[i], N_TENSOR - 1) == FD_PLACED;
    }
    cr_assert_eq(fd_compare_traces(traces[0], traces[1], &how, out, &err), FD_OK, "%s", err.message);
    for (int i = 0; i < 2; i++) fd_trace_close(traces[i]);
}

static void expect_same(const fd_verdict *a, const fd_verdict *b, const char *what) {
    const fd_divergence *x = &a->divergence, *y = &b->divergence;
    cr_expect(a->status == b->status && a->counts.n_compared == b->counts.n_compared &&
                  a->counts.n_before == b->counts.n_before && a->counts.n_after_differ == b->counts.n_after_differ &&
                  a->counts.n_after_identical == b->counts.n_after_identical && a->counts.grid == b->counts.grid &&
                  a->n_missing == b->n_missing && a->counts.n_by_fingerprint == b->counts.n_by_fingerprint,
              "%s: counts", what);
    cr_expect(strcmp(x->node, y->node) == 0 && x->pos == y->pos && x->kind == y->kind &&
                  x->has_values == y->has_values && memcmp(&x->diff, &y->diff, sizeof x->diff) == 0,
              "%s: %s at %d against %s at %d", what, x->node, x->pos, y->node, y->pos);
}

Test(scan, raw_reading_gives_the_verdict_of_the_library) {
    int n_diverged = 0, n_identical = 0;
    for (element e = 0; e < N_ELEMENT; e++)
        for (size_t k = 0; k < sizeof changes / sizeof *changes; k++) {
            fd_verdict slow, fast;
            bool raw;
            char what[128];
            for (storage how = 0; how < N_STORAGE; how++) {
                write_trace((int)how, how, e, &changes[k], false);
                write_trace(N_STORAGE + (int)how, how, e, &changes[k], true);
            }
            verdict_of(NBIT, N_STORAGE + NBIT, &slow, &raw);
            cr_expect_not(raw);
            n_diverged += slow.status == FD_DIVERGED;
            n_identical += slow.status == FD_IDENTICAL;
            static const storage mixes[][2] = {{BLOCKS, BLOCKS}, {ROWS, ROWS}, {TILES, TILES}, {GZIP, GZIP},
                                               {TILES, BLOCKS},  {GZIP, ROWS}, {NBIT, GZIP}};
            for (size_t mix = 0; mix < sizeof mixes / sizeof *mixes; mix++) {
                storage a = mixes[mix][0], b = mixes[mix][1];
                snprintf(what, sizeof what, "%s, %s, %s against %s", element_names[e], changes[k].name,
                         storage_names[a], storage_names[b]);
                verdict_of((int)a, N_STORAGE + (int)b, &fast, &raw);
                cr_expect_eq(raw, a != NBIT && b != NBIT, "%s: read raw", what);
                expect_same(&slow, &fast, what);
                fd_verdict_free(&fast);
            }
            fd_verdict_free(&slow);
        }
    cr_expect(n_diverged == 7 * N_ELEMENT && n_identical == 3 * N_ELEMENT, "%d diverged, %d identical", n_diverged,
              n_identical);
}

Test(scan, types_of_two_sides_meet_on_the_coarser) {
    enum { SLOW_REF, SLOW_CAND, FAST_REF, FAST_CAND }; /* N_ELEMENT files of each */
    for (element e = 0; e < N_ELEMENT; e++) {
        write_trace(SLOW_REF * N_ELEMENT + (int)e, NBIT, e, &changes[3], false);
        write_trace(SLOW_CAND * N_ELEMENT + (int)e, NBIT, e, &changes[3], true);
        write_trace(FAST_REF * N_ELEMENT + (int)e, ROWS, e, &changes[3], false);
        write_trace(FAST_CAND * N_ELEMENT + (int)e, BLOCKS, e, &changes[3], true);
    }
    for (int e = 0; e < N_ELEMENT; e++)
        for (int f = 0; f < N_ELEMENT; f++) {
            fd_verdict slow, fast;
            bool raw;
            char what[64];
            verdict_of(SLOW_REF * N_ELEMENT + e, SLOW_CAND * N_ELEMENT + f, &slow, &raw);
            verdict_of(FAST_REF * N_ELEMENT + e, FAST_CAND * N_ELEMENT + f, &fast, &raw);
            cr_expect(raw);
            snprintf(what, sizeof what, "%s against %s", element_names[e], element_names[f]);
            expect_same(&slow, &fast, what);
            fd_verdict_free(&slow);
            fd_verdict_free(&fast);
        }
}

static void clean(void) {
    fd_scan_unlink();
}
TestSuite(scan, .fini = clean);

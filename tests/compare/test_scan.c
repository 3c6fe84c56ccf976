/* Reading raw and in parallel changes no verdict: the same tensors, stored so that they can be read raw and so that
 * only the library can read them, compared with each other in every combination. */
#include <criterion/criterion.h>
#include <hdf5.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compare/compare.h"
#include "dumpers/hdf5/h5.h"
#include "dumpers/store/place.h"
#include "model/gguf/quant.h"

enum { N_TENSOR = 5, N_POS = 37, N_HEAD = 3 };

/* One tensor's rows take several blocks. */
static hsize_t width_of(int t) {
    return t == 1 ? 17000 : 900;
}

typedef enum storage { BLOCKS, ROWS, TILES, GZIP, NBIT } storage;      /* NBIT: through the library */
typedef enum element { F32, F64, F16, BF16, HALF, N_ELEMENT } element; /* HALF: h5py's own float16 */
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

static const char *path_of(int side) {
    static char paths[2][64];
    if (!paths[side][0]) snprintf(paths[side], sizeof paths[side], "/tmp/firstdiff_scan_%d_%d.h5", (int)getpid(), side);
    return paths[side];
}

/* What makes a file a trace: its schema and `n` tokens. */
static void put_frame(hid_t file, hsize_t n) {
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    hid_t space = H5Screate_simple(1, &n, NULL);
    hid_t set = H5Dcreate2(file, "tokens", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens);
    H5Dclose(set);
    H5Sclose(space);
    free(tokens);
    fd_h5_put_string(file, "schema", "firstdiff-trace");
    fd_h5_put_int(file, "version", 1);
}

static const char *write_trace(int side, storage how, element e, const change *c) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (how == TILES) H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
    hid_t file = H5Fcreate(path_of(side), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    put_frame(file, N_POS);
    hid_t group = H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    for (int t = 0; t < N_TENSOR; t++) write_tensor(group, t, how, e, c, side == 1);
    H5Gclose(group);
    H5Pclose(access);
    H5Fclose(file);
    return path_of(side);
}

/* Fills *raw with whether both sides could be read raw. */
static void verdict_of(fd_verdict *out, bool *raw) {
    fd_trace *traces[2];
    fd_error err = {0};
    fd_compare_options how = {0};
    *raw = true;
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(fd_trace_open(path_of(i), &traces[i], &err), FD_OK, "%s", err.message);
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
            write_trace(0, NBIT, e, &changes[k]);
            write_trace(1, NBIT, e, &changes[k]);
            verdict_of(&slow, &raw);
            cr_expect_not(raw);
            n_diverged += slow.status == FD_DIVERGED;
            n_identical += slow.status == FD_IDENTICAL;
            static const storage mixes[][2] = {{BLOCKS, BLOCKS}, {ROWS, ROWS}, {TILES, TILES}, {GZIP, GZIP},
                                               {TILES, BLOCKS},  {GZIP, ROWS}, {NBIT, GZIP}};
            for (size_t mix = 0; mix < sizeof mixes / sizeof *mixes; mix++) {
                storage a = mixes[mix][0], b = mixes[mix][1];
                snprintf(what, sizeof what, "%s, %s, %s against %s", element_names[e], changes[k].name,
                         storage_names[a], storage_names[b]);
                write_trace(0, a, e, &changes[k]);
                write_trace(1, b, e, &changes[k]);
                verdict_of(&fast, &raw);
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
    for (element e = 0; e < N_ELEMENT; e++)
        for (element f = 0; f < N_ELEMENT; f++) {
            fd_verdict slow, fast;
            bool raw;
            char what[64];
            write_trace(0, NBIT, e, &changes[3]);
            write_trace(1, NBIT, f, &changes[3]);
            verdict_of(&slow, &raw);
            write_trace(0, ROWS, e, &changes[3]);
            write_trace(1, BLOCKS, f, &changes[3]);
            verdict_of(&fast, &raw);
            cr_expect(raw);
            snprintf(what, sizeof what, "%s against %s", element_names[e], element_names[f]);
            expect_same(&slow, &fast, what);
            fd_verdict_free(&slow);
            fd_verdict_free(&fast);
        }
}

/* ---- small datasets beside each other in the file, which are read together ---- */

enum { N_SMALL = 300, SMALL_POS = 2, SMALL_ROW = 512 };
typedef enum place {
    IN_ORDER,
    REVERSED,
    WITH_GAPS,
    N_PLACE
} place; /* gaps: bytes between that differ and are no tensor */

static hid_t put_small(hid_t where, const char *name, const float *data) {
    hsize_t dim[2] = {SMALL_POS, SMALL_ROW};
    hid_t space = H5Screate_simple(2, dim, NULL);
    hid_t set = H5Dcreate2(where, name, H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    H5Sclose(space);
    return set;
}

/* `changed`: the tensor whose element `at` is `value` instead; -1: none. */
static void write_small(int side, place how, int changed, int at, float value) {
    static float data[SMALL_POS * SMALL_ROW];
    hid_t file = H5Fcreate(path_of(side), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    put_frame(file, SMALL_POS);
    hid_t group = H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    hid_t other = H5Gcreate2(file, "other", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    for (int i = 0; i < N_SMALL; i++) {
        int t = how == REVERSED ? N_SMALL - 1 - i : i;
        char name[16];
        snprintf(name, sizeof name, "t%d", t);
        for (int e = 0; e < SMALL_POS * SMALL_ROW; e++) data[e] = (float)(t * 1000 + e);
        if (t == changed) data[at] = value;
        hid_t set = put_small(group, name, data);
        fd_h5_put_int(set, "seq", t);
        H5Dclose(set);
        data[0] = (float)side;
        if (how == WITH_GAPS && i % 3 == 0) H5Dclose(put_small(other, name, data));
    }
    H5Gclose(other);
    H5Gclose(group);
    H5Fclose(file);
}

Test(scan, neighbours_read_together_are_told_apart) {
    static const struct {
        int tensor, at;
    } cases[] = {{-1, 0},         {0, 0},     {1, SMALL_ROW - 1},
                 {17, SMALL_ROW}, {150, 700}, {N_SMALL - 1, SMALL_POS * SMALL_ROW - 1}};
    for (place a = 0; a < N_PLACE; a++)
        for (place b = 0; b < N_PLACE; b++)
            for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
                fd_verdict v;
                fd_trace *traces[2];
                fd_error err = {0};
                fd_compare_options how = {0};
                char name[16];
                write_small(0, a, -1, 0, 0);
                write_small(1, b, cases[k].tensor, cases[k].at, -1);
                for (int i = 0; i < 2; i++)
                    cr_assert_eq(fd_trace_open(path_of(i), &traces[i], &err), FD_OK, "%s", err.message);
                cr_expect_eq(fd_trace_place(traces[0], 0), FD_PLACED);
                cr_assert_eq(fd_compare_traces(traces[0], traces[1], &how, &v, &err), FD_OK, "%s", err.message);
                for (int i = 0; i < 2; i++) fd_trace_close(traces[i]);
                const fd_divergence *d = &v.divergence;
                snprintf(name, sizeof name, "t%d", cases[k].tensor);
                if (cases[k].tensor < 0)
                    cr_expect(v.status == FD_IDENTICAL && v.counts.n_compared == N_SMALL, "places %u, %u: %s", a, b,
                              d->node);
                else
                    cr_expect(v.status == FD_DIVERGED && strcmp(d->node, name) == 0 &&
                                  d->pos == cases[k].at / SMALL_ROW && d->diff.first.index == cases[k].at % SMALL_ROW &&
                                  d->diff.n_differ == 1 && v.counts.n_before == cases[k].tensor &&
                                  v.counts.n_after_differ == 0 && v.counts.n_compared == N_SMALL,
                              "places %u, %u, %s: %s at %d", a, b, name, d->node, d->pos);
                fd_verdict_free(&v);
            }
}

/* ---- memory ---- */

enum { LONG_POS = 3, LONG_ROW = 40 << 20 }; /* 160 MiB a row */

/* A tensor of which only the last element was ever written: the file has holes for the rest. */
static void write_long(int side, float last) {
    hid_t file = H5Fcreate(path_of(side), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hsize_t dim[2] = {LONG_POS, LONG_ROW}, start[2] = {LONG_POS - 1, LONG_ROW - 1}, one[2] = {1, 1};
    int32_t tokens[LONG_POS] = {0};
    hid_t space = H5Screate_simple(1, dim, NULL), wide = H5Screate_simple(2, dim, NULL);
    hid_t create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_fill_time(create, H5D_FILL_TIME_NEVER);
    fd_h5_put_string(file, "schema", "firstdiff-trace");
    fd_h5_put_int(file, "version", 1);
    hid_t set = H5Dcreate2(file, "tokens", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens);
    H5Dclose(set);
    hid_t group = H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    set = H5Dcreate2(group, "x", H5T_IEEE_F32LE, wide, H5P_DEFAULT, create, H5P_DEFAULT);
    fd_h5_write_block(set, H5T_NATIVE_FLOAT, 2, start, one, &last);
    H5Dclose(set);
    H5Gclose(group);
    H5Pclose(create);
    H5Sclose(space);
    H5Sclose(wide);
    H5Fclose(file);
}

static size_t address_space(void) {
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%zu", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* In a child that may take 96 MiB more than it has: 0 when the last element was found. */
static int compare_in_little_memory(void) {
    size_t most = address_space() + ((size_t)96 << 20);
    struct rlimit limit = {most, most};
    fd_verdict verdict;
    fd_trace *traces[2];
    fd_error err = {0};
    fd_compare_options how = {.memory = 16 << 20};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
    void *row = malloc((size_t)LONG_ROW * sizeof(float)); /* the gate can fail: a row does not fit */
    if (row) return 3;
    for (int i = 0; i < 2; i++)
        if (fd_trace_open_within(path_of(i), 16 << 20, &traces[i], &err) != FD_OK) return 4;
    if (fd_compare_traces(traces[0], traces[1], &how, &verdict, &err) != FD_OK) return 5;
    const fd_divergence *d = &verdict.divergence;
    return d->pos == LONG_POS - 1 && d->diff.first.index == LONG_ROW - 1 && d->diff.n_differ == 1 ? 0 : 6;
}

Test(scan, memory_is_bounded_however_long_a_row_is) {
#ifdef __SANITIZE_ADDRESS__
    cr_skip_test("AddressSanitizer's malloc ends the program where there is no memory");
#endif
    write_long(0, 1);
    write_long(1, 2);
    pid_t child = fork();
    if (child == 0) {
        setenv("OMP_NUM_THREADS", "2", 1);
        _exit(compare_in_little_memory());
    }
    int status;
    waitpid(child, &status, 0);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", WEXITSTATUS(status));
}

static void clean(void) {
    for (int i = 0; i < 2; i++) unlink(path_of(i));
}
TestSuite(scan, .fini = clean);

/* Where tensors lie in a file changes no verdict: small ones beside each other are read together, and a row of any length in
 * little memory. */
#include <criterion/criterion.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compare/compare.h"
#include "dumpers/hdf5/h5.h"
#include "dumpers/store/place.h"
#include "tests/compare/scan_file.h"

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
static void write_small(int to, place how, int changed, int at, float value) {
    static float data[SMALL_POS * SMALL_ROW];
    hid_t file = H5Fcreate(fd_scan_path(to), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    fd_scan_put_frame(file, SMALL_POS);
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
        data[0] = (float)to;
        if (how == WITH_GAPS && i % 3 == 0) H5Dclose(put_small(other, name, data));
    }
    H5Gclose(other);
    H5Gclose(group);
    H5Fclose(file);
}

Test(scan_places, neighbours_read_together_are_told_apart) {
    static const struct {
        int tensor, at;
    } cases[] = {{-1, 0},         {0, 0},     {1, SMALL_ROW - 1},
                 {17, SMALL_ROW}, {150, 700}, {N_SMALL - 1, SMALL_POS * SMALL_ROW - 1}};
    for (place a = 0; a < N_PLACE; a++) write_small((int)a, a, -1, 0, 0);
    for (place b = 0; b < N_PLACE; b++)
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            write_small(N_PLACE, b, cases[k].tensor, cases[k].at, -1);
            for (place a = 0; a < N_PLACE; a++) {
                fd_verdict v;
                fd_trace *traces[2];
                fd_error err = {0};
                fd_compare_options how = {0};
                char name[16];
                for (int i = 0; i < 2; i++)
                    cr_assert_eq(fd_trace_open(fd_scan_path(i == 0 ? (int)a : N_PLACE), &traces[i], &err), FD_OK, "%s",
                                 err.message);
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
}

/* ---- memory ---- */

enum { LONG_POS = 3, LONG_ROW = 40 << 20 }; /* 160 MiB a row */

/* A tensor of which only the last element was ever written: the file has holes for the rest. */
static void write_long(int side, float last) {
    hid_t file = H5Fcreate(fd_scan_path(side), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
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
        if (fd_trace_open_within(fd_scan_path(i), 16 << 20, &traces[i], &err) != FD_OK) return 4;
    if (fd_compare_traces(traces[0], traces[1], &how, &verdict, &err) != FD_OK) return 5;
    const fd_divergence *d = &verdict.divergence;
    return d->pos == LONG_POS - 1 && d->diff.first.index == LONG_ROW - 1 && d->diff.n_differ == 1 ? 0 : 6;
}

Test(scan_places, memory_is_bounded_however_long_a_row_is) {
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
    fd_scan_unlink();
}
TestSuite(scan_places, .fini = clean);

/* Rows go through memory and threads of the writer's: however much memory there is and however many threads, the file
 * holds the same. */
#include <criterion/criterion.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

enum { PREFILL = 40, DECODE = 60 };

/* ---- what is the same in two files ---- */

static char *read_all(hid_t file, const char *name, size_t *size, hsize_t dim[4]) {
    hid_t set = H5Dopen2(file, name, H5P_DEFAULT), space = H5Dget_space(set), type = H5Dget_type(set);
    cr_assert_geq(set, 0, "%s", name);
    memset(dim, 0, 4 * sizeof *dim);
    H5Sget_simple_extent_dims(space, dim, NULL);
    *size = H5Tget_size(type) * (size_t)H5Sget_simple_extent_npoints(space);
    char *bytes = malloc(*size + 1);
    cr_assert_geq(H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes), 0, "%s", name);
    H5Tclose(type);
    H5Sclose(space);
    H5Dclose(set);
    return bytes;
}

typedef struct pair {
    hid_t other;
    int n_set, n_different;
} pair;

static herr_t visit(hid_t file, const char *name, const H5O_info_t *info, void *user) {
    pair *p = user;
    if (info->type != H5O_TYPE_DATASET) return 0;
    size_t size[2];
    hsize_t dim[2][4];
    char *a = read_all(file, name, &size[0], dim[0]), *b = read_all(p->other, name, &size[1], dim[1]);
    p->n_set++;
    p->n_different += size[0] != size[1] || memcmp(dim[0], dim[1], sizeof dim[0]) != 0 || memcmp(a, b, size[0]) != 0;
    free(a);
    free(b);
    return 0;
}

/* Datasets that differ in shape or in a bit. */
static int differences(const char *a, const char *b, int at_least) {
    hid_t file = H5Fopen(a, H5F_ACC_RDONLY, H5P_DEFAULT);
    pair p = {.other = H5Fopen(b, H5F_ACC_RDONLY, H5P_DEFAULT)};
    cr_assert(file >= 0 && p.other >= 0);
#if H5_VERSION_GE(1, 12, 0)
    H5Ovisit1(file, H5_INDEX_NAME, H5_ITER_INC, visit, &p);
#else
    H5Ovisit(file, H5_INDEX_NAME, H5_ITER_INC, visit, &p);
#endif
    H5Fclose(file);
    H5Fclose(p.other);
    cr_assert_geq(p.n_set, at_least);
    return p.n_different;
}

/* ---- the writer ---- */

typedef struct kind {
    const char *name;
    fd_trace_level level;
    fd_numerics numerics;
    uint32_t store;
    bool compress;
} kind;

static const kind kinds[] = {
    {"full", FD_TRACE_FULL, FD_NUMERICS_EXACT, FD_F32, false},
    {"binary64", FD_TRACE_FULL, FD_NUMERICS_F64, FD_F32, false},
    {"stored as f16", FD_TRACE_FULL, FD_NUMERICS_EXACT, FD_F16, false},
    {"compressed", FD_TRACE_FULL, FD_NUMERICS_EXACT, FD_F32, true},
    {"fingerprints", FD_TRACE_FINGERPRINT, FD_NUMERICS_EXACT, FD_F32, false},
};

Test(trace_queue, memory_and_threads_do_not_show_in_the_file) {
    fd_graph *graph = fixture_graph((fixture_size){2, 96, 4, 2, 130, 3000});
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        fd_trace_options options = fd_trace_defaults(fixture_path("plain.h5"));
        options.level = kinds[k].level;
        options.store = kinds[k].store;
        options.one_thread = true;
        const char *plain = options.path;
        fixture_write(&options, graph, kinds[k].numerics, PREFILL, DECODE);
        options.compress = kinds[k].compress;
        options.path = fixture_path("queued.h5");
        for (size_t memory = 1; memory <= (size_t)64 << 20; memory <<= 13) { /* the least, 64 MiB */
            options.memory = memory;
            for (int helpers = 0; helpers < 6; helpers += 1 + helpers) {
                options.one_thread = helpers == 0;
                options.helpers = helpers;
                fixture_write(&options, graph, kinds[k].numerics, PREFILL, DECODE);
                cr_expect_eq(differences(plain, options.path, 12), 0, "%s, %zu bytes of memory, %d helpers",
                             kinds[k].name, memory, helpers);
            }
        }
    }
    fd_graph_free(graph);
}

/* Parts of a prompt, in an order, then decode steps. */
static void write_parts(const fd_trace_options *options, const fd_graph *graph, const int32_t (*parts)[2], int n_part) {
    fd_trace_info info = fixture_info();
    fd_trace_writer *writer;
    fd_error err = {0};
    int32_t tokens[PREFILL];
    for (int32_t i = 0; i < PREFILL; i++) tokens[i] = fixture_token(i);
    cr_assert_eq(fd_trace_create(options, &info, graph, FD_NUMERICS_EXACT, &writer, &err), FD_OK, "%s", err.message);
    cr_assert_eq(fd_trace_begin_step(writer, FD_STEP_PREFILL, tokens, PREFILL, 0, &err), FD_OK);
    for (int i = 0; i < n_part; i++)
        cr_assert_eq(fixture_show(fd_trace_observer(writer), graph, FD_NUMERICS_EXACT, parts[i][0], parts[i][1], &err),
                     FD_OK, "%s", err.message);
    cr_assert_eq(fd_trace_end_step(writer, &err), FD_OK);
    for (int32_t i = 0; i < DECODE; i++)
        cr_assert_eq(fixture_step(writer, graph, FD_NUMERICS_EXACT, FD_STEP_DECODE, PREFILL + i, 1, &err), FD_OK);
    cr_assert_eq(fd_trace_finish(writer, &err), FD_OK, "%s", err.message);
}

/* In rising order rows go straight to their places; after one that is not, all of a tensor go through HDF5. */
Test(trace_queue, parts_of_a_step_in_any_order_and_gaps_make_the_same_file) {
    static const int32_t rising[][2] = {{0, 3}, {7, 6}, {14, 1}, {20, 20}},
                         other[][2] = {{7, 6}, {20, 20}, {14, 1}, {0, 3}},
                         twice[][2] = {{0, 3}, {7, 6}, {7, 6}, {2, 1}, {14, 1}, {20, 20}};
    static const int32_t whole[][2] = {{0, PREFILL}};
    fd_graph *graph = fixture_graph((fixture_size){2, 96, 4, 2, 130, 3000});
    fd_trace_options options = fd_trace_defaults(fixture_path("rising.h5"));
    const char *plain = options.path;
    write_parts(&options, graph, rising, 4);
    for (int threads = 0; threads < 2; threads++) {
        options.one_thread = threads == 0;
        options.path = fixture_path("other.h5");
        write_parts(&options, graph, other, 4);
        cr_expect_eq(differences(plain, options.path, 12), 0);
        write_parts(&options, graph, twice, 6);
        cr_expect_eq(differences(plain, options.path, 12), 0);
        write_parts(&options, graph, whole, 1);
        cr_expect_gt(differences(plain, options.path, 12), graph->n_node, "gaps do not show");
    }
    fd_graph_free(graph);
}

/* ---- what would be noticed ---- */

/* Rows `from` and `to` of a tensor exchanged; the same: the row is lost. */
static void damage(const char *path, const char *name, hsize_t from, hsize_t to) {
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT), set = H5Dopen2(file, name, H5P_DEFAULT);
    hid_t space = H5Dget_space(set);
    hsize_t dim[2], at[2][2] = {{from, 0}, {to, 0}};
    H5Sget_simple_extent_dims(space, dim, NULL);
    hsize_t count[2] = {1, dim[1]};
    float *rows[2] = {calloc(dim[1], sizeof(float)), calloc(dim[1], sizeof(float))};
    hid_t memory = H5Screate_simple(2, count, NULL);
    for (int i = 0; i < 2 && from != to; i++) {
        H5Sselect_hyperslab(space, H5S_SELECT_SET, at[i], NULL, count, NULL);
        H5Dread(set, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, rows[i]);
    }
    for (int i = 0; i < 2; i++) {
        H5Sselect_hyperslab(space, H5S_SELECT_SET, at[i], NULL, count, NULL);
        H5Dwrite(set, H5T_NATIVE_FLOAT, memory, space, H5P_DEFAULT, rows[1 - i]);
    }
    free(rows[0]);
    free(rows[1]);
    H5Sclose(memory);
    H5Sclose(space);
    H5Dclose(set);
    H5Fclose(file);
}

Test(trace_queue, a_lost_row_and_rows_out_of_order_are_differences) {
    fd_graph *graph = fixture_graph(fixture_small);
    const struct {
        const char *name;
        hsize_t from, to;
    } cases[] = {{"tensors/token_embd", PREFILL + DECODE - 1, PREFILL + DECODE - 1}, /* of the last chunk */
                 {"tensors/blk.1.l_out", PREFILL, PREFILL + 1},
                 {"tensors/logits", 0, PREFILL + DECODE - 1}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        fd_trace_options options = fd_trace_defaults(fixture_path("whole.h5"));
        const char *whole = options.path;
        fixture_write(&options, graph, FD_NUMERICS_EXACT, PREFILL, DECODE);
        options.path = fixture_path("hurt.h5");
        fixture_write(&options, graph, FD_NUMERICS_EXACT, PREFILL, DECODE);
        cr_assert_eq(differences(whole, options.path, 12), 0);
        damage(options.path, cases[c].name, cases[c].from, cases[c].to);
        cr_expect_eq(differences(whole, options.path, 12), 1, "%s", cases[c].name);
    }
    fd_graph_free(graph);
}

/* ---- flushing ---- */

Test(trace_queue, a_flushed_step_can_be_read_while_the_run_goes_on) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_options options = fd_trace_defaults(fixture_path("flushed.h5"));
    fd_trace_info info = fixture_info();
    fd_trace_writer *writer;
    fd_error err = {0};
    int32_t token = 1;
    cr_assert_eq(fd_trace_create(&options, &info, graph, FD_NUMERICS_EXACT, &writer, &err), FD_OK, "%s", err.message);
    cr_assert_eq(fd_trace_flush(writer, &err), FD_OK); /* of nothing */
    for (int32_t pos = 0; pos < 5; pos++) {
        cr_assert_eq(fixture_step(writer, graph, FD_NUMERICS_EXACT, FD_STEP_DECODE, pos, 1, &err), FD_OK);
        cr_assert_eq(fd_trace_flush(writer, &err), FD_OK);
        fd_trace *trace = fixture_open(options.path);
        cr_assert_eq(fd_trace_n_pos(trace), pos + 1);
        for (int32_t id = 0; id < graph->n_node; id++) fixture_check_tensor(trace, graph, graph->nodes[id].name, pos);
        fd_trace_close(trace);
    }
    cr_assert_eq(fd_trace_begin_step(writer, FD_STEP_DECODE, &token, 1, 5, &err), FD_OK);
    cr_assert_eq(fd_trace_flush(writer, &err), FD_OK); /* in the middle of a step */
    fd_trace_abandon(writer);
    fd_graph_free(graph);
}

/* The group /weights: what is hashed, what is written, and what is refused. */
#include <criterion/criterion.h>
#include <hdf5.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/dtype.h"
#include "dumpers/store/weights.h"
#include "model/gguf/quant.h"
#include "tests/trace/fixture.h"

enum { N_ROW = 7, N_COL = 64 };

static float values[N_ROW * N_COL];
static uint16_t halves[N_ROW * N_COL];

/* Rows 2, 5 and 6 are zero, 6 with a sign. */
static fd_weight make_weight(void) {
    for (int i = 0; i < N_ROW * N_COL; i++) {
        int r = i / N_COL;
        values[i] = r == 2 || r == 5 ? 0.0f : r == 6 ? -0.0f : (float)(i % 19 - 9) / 8.0f;
        halves[i] = fd_f32_to_f16(values[i]);
    }
    return (fd_weight){
        .name = "w", .dtype = FD_F32, .n_row = N_ROW, .n_col = N_COL, .data = values, .bytes = sizeof values};
}

static fd_weight_rows hash(const fd_weight *w, int32_t each) {
    fd_weight_rows rows;
    fd_error err = {0};
    cr_assert_eq(fd_weight_hash(w, each, &rows, &err), FD_OK, "%s", err.message);
    return rows;
}

Test(weights, a_hash_covers_the_rows_as_they_lie_dequantised_in_memory) {
    fd_weight w = make_weight();
    for (int32_t each = 1; each <= N_ROW + 1; each++) {
        fd_weight_rows rows = hash(&w, each);
        cr_expect_eq(rows.n_hash, (N_ROW + each - 1) / each);
        for (int64_t i = 0; i < rows.n_hash; i++) {
            int64_t n = (i + 1) * each > N_ROW ? N_ROW - i * each : each;
            uint64_t expected = XXH3_64bits(values + i * each * N_COL, sizeof(float) * (size_t)(n * N_COL));
            uint64_t one;
            fd_error err = {0};
            cr_expect_eq(rows.hashes[i], expected, "%d rows each, hash %d", each, (int)i);
            cr_assert_eq(fd_weight_hash_at(&w, each, i, &one, &err), FD_OK);
            cr_expect_eq(one, expected);
        }
        cr_expect_eq(rows.n_zero_row, 3, "the sign of a zero does not count");
        cr_expect_eq(rows.n_trailing_zero_row, 2);
        fd_weight_rows_free(&rows);
    }
}

Test(weights, the_stored_type_does_not_count_but_every_bit_of_the_values) {
    fd_weight w = make_weight(), half = w;
    half.dtype = FD_F16;
    half.data = halves;
    fd_weight_rows a = hash(&w, 1), b = hash(&half, 1);
    for (int i = 0; i < N_ROW; i++) cr_expect_eq(a.hashes[i], b.hashes[i], "these values are exact in F16");
    cr_expect_str_eq(a.dtype, "F32");
    cr_expect_str_eq(b.dtype, "F16");
    fd_weight_rows_free(&b);
    values[3 * N_COL + 17] += 0x1p-20f;
    b = hash(&w, 1);
    for (int i = 0; i < N_ROW; i++) cr_expect_eq(a.hashes[i] == b.hashes[i], i != 3, "row %d", i);
    fd_weight_rows_free(&a);
    fd_weight_rows_free(&b);
}

Test(weights, a_large_matrix_has_the_same_hashes_from_any_number_of_threads) {
    enum { ROWS = 1000, COLS = 1024 };
    float *large = malloc(sizeof *large * ROWS * COLS);
    cr_assert(large);
    for (int i = 0; i < ROWS * COLS; i++) large[i] = (float)(i % 8191);
    fd_weight w = {.name = "large", .dtype = FD_F32, .n_row = ROWS, .n_col = COLS, .data = large};
    fd_weight_rows rows = hash(&w, 3);
    for (int64_t i = 0; i < rows.n_hash; i++) {
        int64_t n = i == rows.n_hash - 1 ? ROWS - 3 * i : 3;
        cr_expect_eq(rows.hashes[i], XXH3_64bits(large + i * 3 * COLS, sizeof *large * (size_t)(n * COLS)));
    }
    fd_weight_rows_free(&rows);
    free(large);
}

Test(weights, no_weight_has_more_hashes_than_allowed) {
    for (int64_t n_row = 1; n_row < 200000; n_row = n_row * 3 + 1) {
        int32_t each = fd_weight_rows_per_hash(n_row, 256);
        cr_expect((n_row + each - 1) / each <= 256);
        cr_expect(each == 1 || n_row > 256);
    }
}

/* ---- in a file ---- */

static fd_trace *write_and_open(const char *path, const fd_graph *graph, const fd_graph *model) {
    fd_trace_options to = fd_trace_defaults(path);
    to.weights = model;
    fixture_write(&to, graph, FD_NUMERICS_EXACT, 2, 1);
    fd_trace *trace = fixture_open(path);
    return trace;
}

/* Two readers of "w" and one of "v"; the second reader of "w" may be given another weight. */
static fd_graph *graph_with_weights(fd_weight w, int32_t second) {
    fd_graph *graph = fixture_graph(fixture_small);
    graph->weights = realloc(graph->weights, 3 * sizeof *graph->weights);
    cr_assert(graph->weights);
    graph->n_weight = 3;
    for (int i = 0; i < 3; i++) graph->weights[i] = w;
    strcpy(graph->weights[1].name, "v");
    graph->weights[1].n_row = 4;
    strcpy(graph->weights[2].name, "elsewhere");
    graph->weights[2].n_row = 3;
    graph->nodes[1].weight[0] = 1;
    graph->nodes[3].weight[1] = 0;
    graph->nodes[5].weight[0] = second;
    return graph;
}

Test(weights, are_written_in_order_of_use_and_read_back) {
    fd_weight w = make_weight();
    fd_graph *graph = graph_with_weights(w, 0);
    fd_trace *trace = write_and_open(fixture_path("w.h5"), graph, graph);
    fd_weight_table table;
    fd_error err = {0};
    cr_assert_eq(fd_trace_read_weights(trace, &table, &err), FD_OK, "%s", err.message);
    cr_assert_eq(table.n, 2);
    cr_expect_str_eq(table.rows[0].name, "v");
    cr_expect_eq(table.rows[0].n_trailing_zero_row, 0);
    const fd_weight_rows *found = fd_weight_table_find(&table, "w");
    fd_weight_rows expected = hash(&w, 1);
    cr_assert(found == &table.rows[1]);
    cr_expect_eq(found->n_row, N_ROW);
    cr_expect_eq(found->n_col, N_COL);
    cr_expect_eq(found->n_zero_row, 3);
    cr_expect_str_eq(found->dtype, "F32");
    cr_expect_arr_eq(found->hashes, expected.hashes, sizeof *expected.hashes * N_ROW);
    fd_weight_rows_free(&expected);
    fd_weight_table_free(&table);
    fd_trace_close(trace);
    fd_graph_free(graph);
}

Test(weights, that_one_node_alone_has_stand_under_its_name) {
    fd_graph *model = graph_with_weights(make_weight(), 0), *graph = graph_with_weights(make_weight(), 2);
    fd_trace *trace = write_and_open(fixture_path("own.h5"), graph, model);
    fd_weight_table table;
    fd_error err = {0};
    char name[192];
    cr_assert_eq(fd_trace_read_weights(trace, &table, &err), FD_OK, "%s", err.message);
    cr_expect_eq(table.n, 3);
    snprintf(name, sizeof name, "%s:w", model->nodes[5].name);
    const fd_weight_rows *own = fd_weight_table_find(&table, name), *first = fd_weight_table_find(&table, "w");
    cr_assert(own && first);
    cr_expect_eq(own->n_row, 3);
    cr_expect_eq(first->n_row, N_ROW);
    fd_weight_table_free(&table);
    fd_trace_close(trace);
    fd_graph_free(graph);
    fd_graph_free(model);
}

Test(weights, a_trace_without_them_has_an_empty_table) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace *trace = write_and_open(fixture_path("none.h5"), graph, NULL);
    fd_weight_table table;
    fd_error err = {0};
    cr_expect_eq(fd_trace_read_weights(trace, &table, &err), FD_OK);
    cr_expect_eq(table.n, 0);
    fd_trace_close(trace);
    fd_graph_free(graph);
}

/* ---- what is refused ---- */

typedef enum damage { NOT_64_BITS, RANK_2, WRONG_N_ROW, NO_ROWS_PER_HASH, NO_GROUP, NEVER_WRITTEN, N_DAMAGE } damage;

static void put_int(hid_t set, const char *name, int32_t value) {
    hid_t space = H5Screate(H5S_SCALAR), a = H5Acreate2(set, name, H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(a, H5T_NATIVE_INT32, &value);
    H5Aclose(a);
    H5Sclose(space);
}

static void damage_file(const char *path, damage how) {
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    cr_assert(file >= 0);
    hsize_t dim[2] = {4, 2};
    hid_t space = H5Screate_simple(how == RANK_2 ? 2 : 1, dim, NULL);
    hid_t group = how == NO_GROUP ? file : H5Gcreate2(file, "weights", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    hid_t set =
        H5Dcreate2(group, how == NO_GROUP ? "weights" : "bad", how == NOT_64_BITS ? H5T_STD_I32LE : H5T_STD_U64LE,
                   space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    uint64_t rows[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    if (how != NEVER_WRITTEN) H5Dwrite(set, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows);
    if (how == WRONG_N_ROW) put_int(set, "rows_per_hash", 2), put_int(set, "n_row", 9);
    if (how == NO_ROWS_PER_HASH) put_int(set, "rows_per_hash", 0);
    H5Dclose(set);
    H5Sclose(space);
    if (how != NO_GROUP) H5Gclose(group);
    H5Fclose(file);
}

Test(weights, what_is_no_list_of_hashes_is_refused_by_name) {
    static const char *const said[N_DAMAGE] = {"64-bit integers", "64-bit integers", "n_row is 9",
                                               "rows_per_hash",   "not a group",     "64-bit integers"};
    fd_graph *graph = fixture_graph(fixture_small);
    for (int how = 0; how < N_DAMAGE; how++) {
        const char *path = fixture_path("damaged.h5");
        fd_weight_table table;
        fd_error err = {0};
        fd_trace *trace = write_and_open(path, graph, NULL);
        fd_trace_close(trace);
        damage_file(path, (damage)how);
        trace = fixture_open(path);
        cr_expect_eq(fd_trace_read_weights(trace, &table, &err), FD_ERR_INPUT, "damage %d", how);
        cr_expect(strstr(err.message, said[how]) && strstr(err.message, "weights"), "%d: %s", how, err.message);
        fd_trace_close(trace);
    }
    fd_graph_free(graph);
}

Test(weights, a_foreign_list_needs_nothing_but_the_hashes) {
    fd_graph *graph = fixture_graph(fixture_small);
    const char *path = fixture_path("foreign.h5");
    fd_trace *trace = write_and_open(path, graph, NULL);
    fd_trace_close(trace);
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t group = H5Gcreate2(file, "weights", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    uint64_t rows[3] = {7, 8, UINT64_MAX};
    hsize_t dim = 3;
    hid_t space = H5Screate_simple(1, &dim, NULL);
    hid_t set = H5Dcreate2(group, "blk.0.attn_q.weight", H5T_STD_U64BE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows);
    H5Dclose(set);
    H5Sclose(space);
    H5Gclose(group);
    H5Fclose(file);
    fd_weight_table table;
    fd_error err = {0};
    trace = fixture_open(path);
    cr_assert_eq(fd_trace_read_weights(trace, &table, &err), FD_OK, "%s", err.message);
    cr_assert_eq(table.n, 1);
    cr_expect_eq(table.rows[0].n_row, 3);
    cr_expect_eq(table.rows[0].rows_per_hash, 1);
    cr_expect_eq(table.rows[0].n_col, 0);
    cr_expect_eq(table.rows[0].n_zero_row, -1);
    cr_expect_eq(table.rows[0].hashes[2], UINT64_MAX);
    fd_weight_table_free(&table);
    fd_trace_close(trace);
    fd_graph_free(graph);
}

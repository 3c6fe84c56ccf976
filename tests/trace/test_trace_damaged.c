/* Files that are no trace, or no longer one: refused with a message that names the fault, never a crash. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dumpers/hdf5/h5.h"
#include "fixture.h"

enum { PREFILL = 5, DECODE = 4 };

static const char *whole(const fd_graph *graph, const char *name) {
    fd_trace_options options = fd_trace_defaults(fixture_path(name));
    fixture_write(&options, graph, FD_NUMERICS_EXACT, PREFILL, DECODE);
    return options.path;
}

/* Replaces `path` by an empty dataset of this shape. */
static void replace(hid_t file, const char *path, hid_t type, int rank, const hsize_t *dims) {
    hsize_t chunk[3] = {1, 1, 1};
    hid_t space = H5Screate_simple(rank, dims, NULL), create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(create, rank, chunk);
    H5Ldelete(file, path, H5P_DEFAULT);
    H5Dclose(H5Dcreate2(file, path, type, space, H5P_DEFAULT, create, H5P_DEFAULT));
    H5Pclose(create);
    H5Sclose(space);
}

static void set_extent(hid_t file, const char *path, hsize_t n) {
    fd_h5_shape shape;
    hid_t set = H5Dopen2(file, path, H5P_DEFAULT);
    fd_h5_shape_of(set, &shape);
    shape.dim[0] = n;
    H5Dset_extent(set, shape.dim);
    H5Dclose(set);
}

static void put_on(hid_t file, const char *path, const char *attribute, int32_t value) {
    hid_t object = H5Oopen(file, path, H5P_DEFAULT);
    fd_h5_put_int(object, attribute, value);
    H5Oclose(object);
}

static void no_schema(hid_t f) {
    H5Adelete(f, "schema");
}
static void other_schema(hid_t f) {
    fd_h5_put_string(f, "schema", "something else");
}
static void schema_is_a_number(hid_t f) {
    fd_h5_put_int(f, "schema", 7);
}
static void no_version(hid_t f) {
    H5Adelete(f, "version");
}
static void other_version(hid_t f) {
    fd_h5_put_int(f, "version", 2);
}
static void arch_is_a_number(hid_t f) {
    fd_h5_put_int(f, "arch", 3);
}
static void unknown_level(hid_t f) {
    fd_h5_put_string(f, "level", "verbose");
}
static void no_tokens(hid_t f) {
    H5Ldelete(f, "tokens", H5P_DEFAULT);
}
static void few_tokens(hid_t f) {
    set_extent(f, "tokens", 3);
}
static void many_tokens(hid_t f) {
    set_extent(f, "tokens", 1000);
}
static void tokens_of_rank_2(hid_t f) {
    replace(f, "tokens", H5T_STD_I32LE, 2, (hsize_t[]){9, 2});
}
static void tokens_are_text(hid_t f) {
    replace(f, "tokens", H5T_C_S1, 1, (hsize_t[]){9});
}
static void few_steps(hid_t f) {
    set_extent(f, "steps", 2);
}
static void steps_of_zeros(hid_t f) {
    set_extent(f, "steps", 40);
}
static void steps_are_floats(hid_t f) {
    replace(f, "steps", H5T_IEEE_F32LE, 1, (hsize_t[]){5});
}
static void graph_is_floats(hid_t f) {
    replace(f, "graph", H5T_IEEE_F32LE, 1, (hsize_t[]){41});
}
static void graph_is_a_group(hid_t f) {
    H5Ldelete(f, "graph", H5P_DEFAULT);
    H5Gclose(H5Gcreate2(f, "graph", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
}
static void graph_of_nothing(hid_t f) {
    hid_t graph = H5Dopen2(f, "graph", H5P_DEFAULT), type = H5Dget_type(graph);
    H5Dclose(graph);
    replace(f, "graph", type, 1, (hsize_t[]){41});
    H5Tclose(type);
}
static void graph_missing(hid_t f) {
    H5Ldelete(f, "graph", H5P_DEFAULT);
}
static void tensor_not_in_graph(hid_t f) {
    H5Lmove(f, "tensors/logits", f, "tensors/other", H5P_DEFAULT, H5P_DEFAULT);
}
static void tensor_is_a_group(hid_t f) {
    H5Ldelete(f, "tensors/logits", H5P_DEFAULT);
    H5Gclose(H5Gcreate2(f, "tensors/logits", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
}
static void tensor_of_integers(hid_t f) {
    replace(f, "tensors/logits", H5T_STD_I32LE, 2, (hsize_t[]){9, 37});
}
static void tensor_of_raw_words(hid_t f) {
    replace(f, "tensors/logits", H5T_STD_U16LE, 2, (hsize_t[]){9, 37});
}
static void tensor_of_rank_1(hid_t f) {
    replace(f, "tensors/logits", H5T_IEEE_F32LE, 1, (hsize_t[]){9});
}
static void tensor_of_rank_3(hid_t f) {
    replace(f, "tensors/logits", H5T_IEEE_F32LE, 3, (hsize_t[]){9, 37, 1});
}
static void tensor_too_wide(hid_t f) {
    replace(f, "tensors/logits", H5T_IEEE_F32LE, 2, (hsize_t[]){9, 38});
}
static void tensor_too_short(hid_t f) {
    set_extent(f, "tensors/logits", 8);
}
static void tensor_too_long(hid_t f) {
    set_extent(f, "tensors/logits", 10);
}
static void tensor_enormous(hid_t f) {
    replace(f, "tensors/blk.0.attn_q", H5T_IEEE_F32LE, 3, (hsize_t[]){9, (hsize_t)1 << 40, (hsize_t)1 << 22});
}
static void tensor_begins_late(hid_t f) {
    put_on(f, "tensors/logits", "first_position", 3);
}
static void tensor_begins_before(hid_t f) {
    put_on(f, "tensors/logits", "first_position", -3);
}
static void tensor_dtype_lies(hid_t f) {
    hid_t set = H5Dopen2(f, "tensors/logits", H5P_DEFAULT);
    fd_h5_put_string(set, "dtype", "F64");
    H5Dclose(set);
}
static void keys_too_few(hid_t f) {
    hid_t set = H5Dopen2(f, "tensors/blk.0.attn_scores", H5P_DEFAULT);
    H5Dset_extent(set, (hsize_t[]){9, 3, 4});
    H5Dclose(set);
}
static void prints_too_few(hid_t f) {
    set_extent(f, "fingerprints", 8);
}
static void prints_of_other_nodes(hid_t f) {
    replace(f, "fingerprints", H5T_STD_U64LE, 3, (hsize_t[]){9, 40, 2});
}
static void prints_unwritten(hid_t f) {
    replace(f, "fingerprints", H5T_STD_U64LE, 3, (hsize_t[]){9, 41, 2});
}
static void stats_too_narrow(hid_t f) {
    replace(f, "stats", H5T_IEEE_F64LE, 3, (hsize_t[]){9, 41, 8});
}
static void health_top_too_narrow(hid_t f) {
    replace(f, "health/top_id", H5T_STD_I32LE, 2, (hsize_t[]){9, 9});
}
static void entropy_flat(hid_t f) {
    replace(f, "health/entropy", H5T_IEEE_F32LE, 2, (hsize_t[]){9, 6});
}
static void sink_of_other_heads(hid_t f) {
    replace(f, "health/sink", H5T_IEEE_F32LE, 3, (hsize_t[]){9, 2, 4});
}

typedef struct edit_case {
    const char *name, *says;
    void (*edit)(hid_t file);
} edit_case;

static const edit_case edits[] = {
    {"no schema", "schema", no_schema},
    {"another schema", "something else", other_schema},
    {"schema is a number", "schema", schema_is_a_number},
    {"no version", "version", no_version},
    {"another version", "version is 2", other_version},
    {"arch is a number", "arch", arch_is_a_number},
    {"unknown level", "verbose", unknown_level},
    {"no tokens", "tokens", no_tokens},
    {"fewer tokens than positions", "tokens", few_tokens},
    {"more tokens than positions", "1000", many_tokens},
    {"tokens of rank 2", "tokens", tokens_of_rank_2},
    {"tokens are text", "tokens", tokens_are_text},
    {"steps end early", "steps", few_steps},
    {"steps of zeros", "step 5", steps_of_zeros},
    {"steps are floats", "steps", steps_are_floats},
    {"graph is floats", "graph", graph_is_floats},
    {"graph is a group", "graph", graph_is_a_group},
    {"graph of nothing", "graph row 0", graph_of_nothing},
    {"no graph, but fingerprints", "graph", graph_missing},
    {"tensor not in the graph", "tensors/other", tensor_not_in_graph},
    {"tensor is a group", "tensors/logits", tensor_is_a_group},
    {"tensor of integers", "tensors/logits", tensor_of_integers},
    {"tensor of raw words without dtype", "dtype", tensor_of_raw_words},
    {"tensor of rank 1", "rank 1", tensor_of_rank_1},
    {"tensor of rank 3", "[9, 37, 1]", tensor_of_rank_3},
    {"tensor too wide", "[9, 38]", tensor_too_wide},
    {"tensor too short", "expected 9", tensor_too_short},
    {"tensor too long", "expected 9", tensor_too_long},
    {"tensor of 2^62 elements", "blk.0.attn_q", tensor_enormous},
    {"tensor begins late", "expected 6", tensor_begins_late},
    {"tensor begins before the run", "-3", tensor_begins_before},
    {"tensor's dtype lies", "F64", tensor_dtype_lies},
    {"too few keys", "n_kv", keys_too_few},
    {"too few fingerprints", "fingerprints", prints_too_few},
    {"fingerprints of other nodes", "[9, 40, 2]", prints_of_other_nodes},
    {"fingerprints never written", "stored", prints_unwritten},
    {"stats too narrow", "stats", stats_too_narrow},
    {"top ten of nine", "health/top_id", health_top_too_narrow},
    {"entropy without heads", "health/entropy", entropy_flat},
    {"sink of other heads", "health/sink", sink_of_other_heads},
};

Test(trace_damaged, each_damage_is_named) {
    fd_graph *graph = fixture_graph(fixture_small);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const char *path = whole(graph, "edited.h5");
        fd_trace *trace = NULL;
        fd_error err = {0};
        hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
        edits[i].edit(file);
        H5Fclose(file);
        cr_expect_eq(fd_trace_open(path, &trace, &err), FD_ERR_INPUT, "%s: opened", edits[i].name);
        cr_expect_null(trace);
        cr_expect(strstr(err.message, edits[i].says) && strstr(err.message, "edited.h5"), "%s: %s", edits[i].name,
                  err.message);
        fd_trace_close(trace);
    }
    /* the same file without damage opens: the edits are what is refused */
    fd_trace *trace;
    fd_error err = {0};
    cr_assert_eq(fd_trace_open(whole(graph, "edited.h5"), &trace, &err), FD_OK, "%s", err.message);
    fd_trace_close(trace);
    fd_graph_free(graph);
}

Test(trace_damaged, files_that_are_no_hdf5) {
    const char *path = fixture_path("text.h5");
    fd_trace *trace;
    fd_error err = {0};
    cr_expect_eq(fd_trace_open("/nowhere/trace.h5", &trace, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "/nowhere/trace.h5") && strstr(err.message, "No such file"), "%s", err.message);
    FILE *file = fopen(path, "w");
    cr_expect_eq(fd_trace_open(path, &trace, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "empty"), "%s", err.message);
    fputs("this is not HDF5", file);
    fclose(file);
    cr_expect_eq(fd_trace_open(path, &trace, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "not an HDF5 file"), "%s", err.message);
    cr_expect_eq(fd_trace_open("/tmp", &trace, &err), FD_ERR_INPUT);
}

/* Opens and reads everything, in a child: what it finds is of no matter, that it comes back is. 1: it passed for a
 * trace. */
static int read_everything(const char *path) {
    fd_trace *trace;
    fd_error err = {0};
    if (fd_trace_open(path, &trace, &err) != FD_OK) return err.message[0] ? 0 : 2;
    for (int32_t node = 0; node < fd_trace_n_node(trace); node++)
        for (int32_t pos = 0; pos < fd_trace_n_pos(trace); pos++) {
            int64_t n = fd_trace_elements(fd_trace_node_at(trace, node), pos);
            double *row = malloc((size_t)n * sizeof *row + 1);
            if (row) fd_trace_read(trace, node, pos, NULL, row, &err);
            free(row);
        }
    fd_trace_close(trace);
    return 1;
}

static int in_child(const char *path) {
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(read_everything(path));
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Test(trace_damaged, truncated_anywhere_it_never_crashes_and_never_passes_for_whole) {
    fd_graph *graph = fixture_graph(fixture_small);
    const char *path = whole(graph, "truncated.h5");
    struct stat there;
    stat(path, &there);
    for (int i = 0; i < 60; i++) {
        off_t size = there.st_size * i / 60;
        if (i < 12) size = 8 << i;
        if (i == 59) size = there.st_size - 1;
        if (size >= there.st_size) continue;
        whole(graph, "truncated.h5");
        cr_assert_eq(truncate(path, size), 0);
        cr_expect_eq(in_child(path), 0, "%lld of %lld bytes", (long long)size, (long long)there.st_size);
    }
    fd_graph_free(graph);
}

/* HDF5's global heap (the text of attributes) has no checksum, and HDF5 1.10 itself crashes on a damaged one. */
static bool in_global_heap(const uint8_t *bytes, off_t size, off_t at) {
    for (off_t i = at; i >= 0 && i > at - 65536; i--)
        if (i + 16 <= size && memcmp(bytes + i, "GCOL", 4) == 0) {
            uint64_t heap_size;
            memcpy(&heap_size, bytes + i + 8, sizeof heap_size);
            return (uint64_t)(at - i) < heap_size;
        }
    return false;
}

Test(trace_damaged, flipped_bytes_never_crash_our_code) {
    fd_graph *graph = fixture_graph(fixture_small);
    const char *path = whole(graph, "flipped.h5");
    struct stat there;
    stat(path, &there);
    uint8_t *bytes = malloc((size_t)there.st_size);
    int source = open(path, O_RDONLY);
    cr_assert_eq(read(source, bytes, (size_t)there.st_size), there.st_size);
    close(source);
    uint64_t random = 1;
    int opened = 0, refused = 0;
    for (int round = 0; round < 300; round++) {
        uint8_t before, after;
        /* metadata is at the front: most flips go there */
        random = fd_mix64(random + 0x9e3779b97f4a7c15u);
        off_t at = (off_t)(random % (uint64_t)(round % 4 ? 40000 : there.st_size));
        if (in_global_heap(bytes, there.st_size, at)) continue;
        int fd = open(path, O_RDWR);
        cr_assert_eq(pread(fd, &before, 1, at), 1);
        after = before ^ (uint8_t)(1u << (random >> 60 & 7));
        cr_assert_eq(pwrite(fd, &after, 1, at), 1);
        int found = in_child(path);
        cr_assert_eq(pwrite(fd, &before, 1, at), 1);
        close(fd);
        cr_expect(found == 0 || found == 1, "byte %lld: %02x became %02x: %d", (long long)at, before, after, found);
        opened += found == 1;
        refused += found == 0;
    }
    cr_expect(opened > 20 && refused > 20, "%d opened, %d refused", opened, refused);
    free(bytes);
    fd_graph_free(graph);
}

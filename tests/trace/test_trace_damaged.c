/* Files that are no trace, or no longer one: refused with a message that names the fault, never a crash. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"
#include "h5_edit.h"

enum { PREFILL = 5, DECODE = 4 };

static const char *whole(const fd_graph *graph, const char *name) {
    fd_trace_options options = fd_trace_defaults(fixture_path(name));
    fixture_write(&options, graph, FD_NUMERICS_EXACT, PREFILL, DECODE);
    return options.path;
}

static const h5_edit edits[] = {
    {"no schema", "schema", NO_ATTRIBUTE, "/", "schema"},
    {"another schema", "something else", SAYS, "/", "schema", "something else"},
    {"schema is a number", "schema", IS, "/", "schema", .shape = {7}},
    {"no version", "version", NO_ATTRIBUTE, "/", "version"},
    {"another version", "version is 2", IS, "/", "version", .shape = {2}},
    {"arch is a number", "arch", IS, "/", "arch", .shape = {3}},
    {"unknown level", "verbose", SAYS, "/", "level", "verbose"},
    {"no tokens", "tokens", DELETED, "tokens"},
    {"fewer tokens than positions", "tokens", EXTENT, "tokens", .shape = {3}},
    {"more tokens than positions", "1000", EXTENT, "tokens", .shape = {1000}},
    {"tokens of rank 2", "tokens", INTEGERS, "tokens", .shape = {9, 2}},
    {"tokens are text", "tokens", CHARACTERS, "tokens", .shape = {9}},
    {"steps end early", "steps", EXTENT, "steps", .shape = {2}},
    {"steps of zeros", "step 5", EXTENT, "steps", .shape = {40}},
    {"steps are floats", "steps", FLOATS, "steps", .shape = {5}},
    {"graph is floats", "graph", FLOATS, "graph", .shape = {41}},
    {"graph is a group", "graph", A_GROUP, "graph"},
    {"graph of nothing", "graph row 0", ROWS, "graph", .shape = {41}},
    {"no graph, but fingerprints", "graph", DELETED, "graph"},
    {"tensor not in the graph", "tensors/other", MOVED, "tensors/logits", .text = "tensors/other"},
    {"tensor is a group", "tensors/logits", A_GROUP, "tensors/logits"},
    {"tensor of integers", "tensors/logits", INTEGERS, "tensors/logits", .shape = {9, 37}},
    {"tensor of raw words without dtype", "dtype", WORDS, "tensors/logits", .shape = {9, 37}},
    {"tensor of rank 1", "rank 1", FLOATS, "tensors/logits", .shape = {9}},
    {"tensor of rank 3", "[9, 37, 1]", FLOATS, "tensors/logits", .shape = {9, 37, 1}},
    {"tensor too wide", "[9, 38]", FLOATS, "tensors/logits", .shape = {9, 38}},
    {"tensor too short", "expected 9", EXTENT, "tensors/logits", .shape = {8}},
    {"tensor too long", "expected 9", EXTENT, "tensors/logits", .shape = {10}},
    {"tensor of 2^62 elements", "blk.0.attn_q", FLOATS, "tensors/blk.0.attn_q", .shape = {9, 1LL << 40, 1 << 22}},
    {"tensor begins late", "expected 6", IS, "tensors/logits", "first_position", .shape = {3}},
    {"tensor begins before the run", "-3", IS, "tensors/logits", "first_position", .shape = {-3}},
    {"the last 0 rows of a step", "last_rows", IS, "tensors/logits", "last_rows", .shape = {0}},
    {"tensor's dtype lies", "F64", SAYS, "tensors/logits", "dtype", "F64"},
    {"too few keys", "n_kv", EXTENT, "tensors/blk.0.attn_scores", .shape = {9, 3, 4}},
    {"too few fingerprints", "fingerprints", EXTENT, "fingerprints", .shape = {8}},
    {"fingerprints of other nodes", "[9, 40, 2]", PRINTS, "fingerprints", .shape = {9, 40, 2}},
    {"fingerprints never written", "stored", PRINTS, "fingerprints", .shape = {9, 41, 2}},
    {"stats too narrow", "stats", DOUBLES, "stats", .shape = {9, 41, 8}},
    {"top ten of nine", "health/top_id", INTEGERS, "health/top_id", .shape = {9, 9}},
    {"entropy without heads", "health/entropy", FLOATS, "health/entropy", .shape = {9, 6}},
    {"sink of other heads", "health/sink", FLOATS, "health/sink", .shape = {9, 2, 4}},
};

Test(trace_damaged, each_damage_is_named) {
    fd_graph *graph = fixture_graph(fixture_small);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const char *path = whole(graph, "edited.h5");
        fd_trace *trace = NULL;
        fd_error err = {0};
        h5_apply(path, &edits[i]);
        cr_expect_eq(fd_trace_open(path, &trace, &err), FD_ERR_INPUT, "%s: opened", edits[i].name);
        cr_expect_null(trace);
        cr_expect(strstr(err.message, edits[i].says) && strstr(err.message, "edited.h5"), "%s: %s", edits[i].name,
                  err.message);
        fd_trace_close(trace);
    }
    /* the same file without damage opens: the edits are what is refused */
    fd_trace *trace = fixture_open(whole(graph, "edited.h5"));
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

/* The C side of check_with_h5py.py:
 *   trace_peer write FILE full|stats|fingerprint f32|f64   a fabricated trace, 7 positions and 25 single steps
 *   trace_peer killed FILE                                 the same, flushed, ended by SIGKILL in the middle of a step
 *   trace_peer read FILE                                   what the reader makes of a file, one line for each fact */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static int fail(const fd_error *err) {
    fprintf(stderr, "%s\n", err->message);
    return 1;
}

static int write_trace(const char *path, const char *level, const char *dtype, bool killed) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_options options = fd_trace_defaults(path);
    fd_trace_info info = fixture_info();
    fd_numerics numerics = strcmp(dtype, "f64") == 0 ? FD_NUMERICS_F64 : FD_NUMERICS_EXACT;
    fd_trace_writer *writer;
    fd_error err = {0};
    options.level = strcmp(level, "full") == 0    ? FD_TRACE_FULL
                    : strcmp(level, "stats") == 0 ? FD_TRACE_STATS
                                                  : FD_TRACE_FINGERPRINT;
    if (fd_trace_create(&options, &info, graph, numerics, &writer, &err) != FD_OK) return fail(&err);
    if (fixture_step(writer, graph, numerics, FD_STEP_PREFILL, 0, 7, &err) != FD_OK) return fail(&err);
    for (int32_t pos = 7; pos < 32; pos++)
        if (fixture_step(writer, graph, numerics, FD_STEP_DECODE, pos, 1, &err) != FD_OK) return fail(&err);
    if (killed) {
        int32_t token = 1;
        if (fd_trace_flush(writer, &err) != FD_OK) return fail(&err);
        fd_trace_begin_step(writer, FD_STEP_DECODE, &token, 1, 32, &err);
        fixture_show(fd_trace_observer(writer), graph, numerics, 32, 1, &err);
        raise(SIGKILL);
    }
    if (fd_trace_finish(writer, &err) != FD_OK) return fail(&err);
    fd_graph_free(graph);
    return 0;
}

static int read_trace(const char *path) {
    fd_trace *trace;
    fd_error err = {0};
    if (fd_trace_open(path, &trace, &err) != FD_OK) return fail(&err);
    printf("positions %d complete %d tokens", fd_trace_n_pos(trace), fd_trace_get_info(trace)->complete);
    for (int32_t i = 0; i < fd_trace_n_pos(trace); i++) printf(" %d", fd_trace_tokens(trace)[i]);
    printf("\n");
    for (int32_t i = 0; i < fd_trace_n_node(trace); i++) {
        const fd_trace_node *node = fd_trace_node_at(trace, i);
        for (int32_t pos = 0; pos < fd_trace_n_pos(trace); pos++) {
            int64_t n = fd_trace_elements(node, pos);
            double *row = malloc((size_t)n * sizeof *row);
            if (fd_trace_read(trace, i, pos, NULL, row, &err) != FD_OK) return fail(&err);
            printf("%s %d", node->name, pos);
            for (int64_t k = 0; k < n; k++) printf(" %016" PRIx64, fd_bits64(row[k]));
            printf("\n");
            free(row);
        }
    }
    fd_trace_close(trace);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "write") == 0) return write_trace(argv[2], argv[3], argv[4], false);
    if (argc == 3 && strcmp(argv[1], "killed") == 0) return write_trace(argv[2], "full", "f32", true);
    if (argc == 3 && strcmp(argv[1], "read") == 0) return read_trace(argv[2]);
    fprintf(stderr, "usage: trace_peer write FILE LEVEL f32|f64 | killed FILE | read FILE\n");
    return 2;
}

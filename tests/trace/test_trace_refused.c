/* What the trace writer refuses: places that cannot hold a trace, calls in the wrong order. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fixture.h"

static fd_code create(const char *path, fd_graph *graph, fd_trace_writer **writer, fd_error *err) {
    fd_trace_options options = fd_trace_defaults(path);
    fd_trace_info info = fixture_info();
    return fd_trace_create(&options, &info, graph, FD_NUMERICS_EXACT, writer, err);
}

Test(trace_refused, places_that_cannot_hold_a_trace_are_named) {
    const char *places[] = {"/dev/full", "/dev/null", "/proc/trace.h5", "/nowhere/at/all.h5", "/"};
    fd_graph *graph = fixture_graph(fixture_small);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        fd_trace_writer *writer = NULL;
        fd_error err = {0};
        cr_expect_eq(create(places[i], graph, &writer, &err), FD_ERR_IO, "%s", places[i]);
        cr_expect(strstr(err.message, places[i]), "%s", err.message);
        cr_expect_null(writer);
    }
    fd_graph_free(graph);
}

Test(trace_refused, a_failed_create_leaves_the_old_file) {
    fd_graph *graph = fixture_graph(fixture_small);
    const char *path = fixture_path("kept.h5");
    fd_trace_options options = fd_trace_defaults(path);
    fixture_write(&options, graph, FD_NUMERICS_EXACT, 7, 1);
    /* a directory stands where the new file would be made */
    char part[200];
    snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid());
    cr_assert_eq(mkdir(part, 0700), 0);
    fd_trace_writer *writer = NULL;
    fd_error err = {0};
    cr_expect_eq(create(path, graph, &writer, &err), FD_ERR_IO);
    cr_expect(strstr(err.message, "kept.h5") && strstr(err.message, "File exists"), "%s", err.message);
    rmdir(part);
    fd_trace *trace = fixture_open(path);
    cr_expect_eq(fd_trace_n_pos(trace), 8);
    fd_trace_close(trace);
    /* and without the obstacle the old file is replaced */
    cr_assert_eq(create(path, graph, &writer, &err), FD_OK, "%s", err.message);
    fd_trace_abandon(writer);
    trace = fixture_open(path);
    cr_expect(fd_trace_n_pos(trace) == 0 && !fd_trace_get_info(trace)->complete);
    fd_trace_close(trace);
    fd_graph_free(graph);
}

Test(trace_refused, calls_out_of_order_are_refused) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_writer *writer;
    fd_error err = {0};
    const int32_t tokens[2] = {1, 2};
    cr_assert_eq(create(fixture_path("order.h5"), graph, &writer, &err), FD_OK);
    cr_expect_eq(fd_trace_end_step(writer, &err), FD_ERR_INPUT);
    cr_expect_eq(fd_trace_begin_step(writer, FD_STEP_PREFILL, tokens, 0, 0, &err), FD_ERR_INPUT);
    cr_expect_eq(fd_trace_begin_step(writer, FD_STEP_PREFILL, tokens, 2, 1, &err), FD_ERR_INPUT);
    cr_expect_eq(fixture_show(fd_trace_observer(writer), graph, FD_NUMERICS_EXACT, 0, 2, &err), FD_ERR_INPUT);
    cr_assert_eq(fd_trace_begin_step(writer, FD_STEP_PREFILL, tokens, 2, 0, &err), FD_OK);
    cr_expect_eq(fd_trace_begin_step(writer, FD_STEP_PREFILL, tokens, 2, 0, &err), FD_ERR_INPUT);
    cr_expect_eq(fixture_show(fd_trace_observer(writer), graph, FD_NUMERICS_EXACT, 0, 3, &err), FD_ERR_INPUT);
    cr_expect_eq(fixture_show(fd_trace_observer(writer), graph, FD_NUMERICS_F64, 0, 2, &err), FD_ERR_INPUT);
    fd_graph *other = fixture_graph((fixture_size){1, 15, 3, 1, 22, 37});
    cr_expect_eq(fixture_show(fd_trace_observer(writer), other, FD_NUMERICS_EXACT, 0, 2, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "another graph"), "%s", err.message);
    cr_expect_eq(fd_trace_finish(writer, &err), FD_ERR_INPUT); /* a step is open */
    fd_graph_free(other);
    fd_graph_free(graph);
}

/* HDF5 once freed a file's driver while it closed the file. Under MALLOC_PERTURB_ and AddressSanitizer a use of what was freed shows. */
Test(trace_refused, closing_after_a_failed_create_and_closing_again) {
    fd_graph *graph = fixture_graph(fixture_small);
    for (int i = 0; i < 3; i++) {
        const char *path = fixture_path("again.h5");
        fd_trace_writer *writer = NULL, *none = NULL;
        fd_error err = {0};
        cr_assert_eq(create(path, graph, &writer, &err), FD_OK, "%s", err.message);
        fd_trace_abandon(writer);
        cr_expect_eq(create("/nowhere/at/all.h5", graph, &none, &err), FD_ERR_IO);
        cr_expect_null(none);
        fd_trace_options options = fd_trace_defaults(path);
        fixture_write(&options, graph, FD_NUMERICS_EXACT, 2, 1);
        fd_trace_close(fixture_open(path));
    }
    fd_graph_free(graph);
}

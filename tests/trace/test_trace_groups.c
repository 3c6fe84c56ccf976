/* Several traces in one file, a group each. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "dumpers/store/file.h"
#include "fixture.h"

static const char *const groups[] = {"prompt/0", "prompt/1"};

static void write_group(fd_trace_file *file, int i, const fd_graph *graph) {
    fd_trace_options options = fd_trace_defaults(file->path);
    options.file = file;
    options.group = groups[i];
    options.level = FD_TRACE_FINGERPRINT;
    options.always = "logits,*.l_out";
    fixture_write(&options, graph, FD_NUMERICS_EXACT, 5 + i, 3);
}

static void check_group(const char *path, int i, const fd_graph *graph) {
    fd_trace *trace, *whole;
    fd_error err = {0};
    fd_trace_options options = fd_trace_defaults(fixture_path("whole.h5"));
    fixture_write(&options, graph, FD_NUMERICS_EXACT, 5 + i, 3);
    whole = fixture_open(options.path);
    cr_assert_eq(fd_trace_open_group(path, groups[i], &trace, &err), FD_OK, "%s", err.message);
    cr_expect(fd_trace_get_info(trace)->complete);
    cr_expect_eq(fd_trace_n_pos(trace), 8 + i);
    cr_expect_eq(fd_trace_n_step(trace), 4);
    for (int32_t node = 0; node < graph->n_node; node++) {
        const char *name = graph->nodes[node].name;
        bool always = strcmp(name, "logits") == 0 || strstr(name, ".l_out");
        cr_expect_eq(fd_trace_node_at(trace, node)->has_data, always, "%s", name);
        if (always) fixture_check_tensor(trace, graph, name, 6);
        if (always) fixture_check_tensor(trace, graph, name, 7 + i);
        for (int32_t pos = 0; pos < 8 + i; pos++)
            cr_expect_eq(memcmp(fd_trace_fingerprint(trace, node, pos), fd_trace_fingerprint(whole, node, pos),
                                sizeof(fd_fingerprint)),
                         0, "%s at %d", name, pos);
    }
    cr_expect_null(fd_trace_stats_at(trace, 0, 0));
    fd_trace_close(trace);
    fd_trace_close(whole);
}

Test(trace_groups, each_group_holds_its_own_trace) {
    fd_graph *graph = fixture_graph(fixture_small);
    const char *path = fixture_path("groups.h5");
    fd_trace_file *file;
    fd_error err = {0};
    fd_trace *trace;
    cr_assert_eq(fd_trace_file_create(path, &file, &err), FD_OK, "%s", err.message);
    for (int i = 0; i < 2; i++) write_group(file, i, graph);
    cr_expect_neq(access(path, F_OK), 0, "it is put in place when it is whole");
    cr_assert_eq(fd_trace_file_finish(file, &err), FD_OK, "%s", err.message);
    for (int i = 0; i < 2; i++) check_group(path, i, graph);
    cr_expect_eq(fd_trace_open_group(path, "prompt/2", &trace, &err), FD_ERR_INPUT);
    cr_expect(strstr(err.message, "no group prompt/2"), "%s", err.message);
    cr_expect_eq(fd_trace_open(path, &trace, &err), FD_ERR_INPUT);
    fd_graph_free(graph);
}

Test(trace_groups, an_abandoned_file_leaves_nothing) {
    fd_graph *graph = fixture_graph(fixture_small);
    const char *path = fixture_path("abandoned.h5");
    fd_trace_file *file;
    fd_error err = {0};
    cr_assert_eq(fd_trace_file_create(path, &file, &err), FD_OK, "%s", err.message);
    write_group(file, 0, graph);
    cr_expect_eq(access(file->part, F_OK), 0);
    char part[256];
    strcpy(part, file->part);
    fd_trace_file_abandon(file);
    cr_expect_neq(access(path, F_OK), 0);
    cr_expect_neq(access(part, F_OK), 0);
    fd_graph_free(graph);
}

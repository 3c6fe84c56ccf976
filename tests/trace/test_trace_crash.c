/* A run that is killed, or whose disk is full, leaves a file that opens and holds every step that was flushed, and of
 * later ones only whole ones. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <hdf5.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dumpers/hdf5/driver.h"
#include "fixture.h"

/* Big enough that chunks fill and HDF5's indices split while a step is on its way. */
static const fixture_size size = {3, 60, 3, 1, 90, 250};

static void check_finished_steps(const char *path, fd_graph *graph, int32_t at_least, int32_t at_most) {
    fd_trace *trace = fixture_open(path);
    int32_t n_pos = fd_trace_n_pos(trace);
    cr_assert(n_pos >= at_least && n_pos <= at_most, "%d positions, expected %d to %d", n_pos, at_least, at_most);
    cr_assert_not(fd_trace_get_info(trace)->complete);
    cr_assert_str_eq(fd_trace_get_info(trace)->finished, "");
    for (int32_t pos = 0; pos < n_pos; pos++)
        for (int32_t id = 0; id < graph->n_node; id++) {
            cr_assert_not_null(fd_trace_fingerprint(trace, id, pos));
            fixture_check_tensor(trace, graph, graph->nodes[id].name, pos);
        }
    fd_trace_close(trace);
    /* as h5py, HDFView and h5dump open it: without knowing that it was being written */
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    cr_assert_geq(file, 0, "plain HDF5 refuses the file");
    H5Fclose(file);
}

static fd_code step_and_flush(fd_trace_writer *writer, const fd_graph *graph, int32_t pos, int32_t n, fd_error *err) {
    FD_TRY(fixture_step(writer, graph, FD_NUMERICS_EXACT, FD_STEP_DECODE, pos, n, err));
    return fd_trace_flush(writer, err);
}

static fd_trace_writer *create_or_exit(const char *path, const fd_graph *graph, bool compress) {
    fd_error err = {0};
    fd_trace_options options = fd_trace_defaults(path);
    fd_trace_info info = fixture_info();
    fd_trace_writer *writer;
    options.compress = compress;
    if (fd_trace_create(&options, &info, graph, FD_NUMERICS_EXACT, &writer, &err) != FD_OK) _exit(99);
    return writer;
}

Test(trace_crash, killed_at_any_moment_the_file_opens) {
    fd_graph *graph = fixture_graph(size);
    const char *path = fixture_path("killed.h5");
    for (int round = 0; round < 12; round++) {
        int reports[2], every = 1 + round % 3; /* steps between flushes */
        cr_assert_eq(pipe(reports), 0);
        pid_t child = fork();
        if (child == 0) {
            fd_error err = {0};
            fd_trace_writer *writer = create_or_exit(path, graph, round % 4 == 3);
            for (int32_t pos = 0;; pos++) {
                if (fixture_step(writer, graph, FD_NUMERICS_EXACT, FD_STEP_DECODE, pos, 1, &err) != FD_OK) _exit(98);
                if ((pos + 1) % every) continue;
                if (fd_trace_flush(writer, &err) != FD_OK) _exit(96);
                if (write(reports[1], "s", 1) != 1) _exit(97);
            }
        }
        close(reports[1]);
        char report;
        int32_t seen = 0, wanted = (3 + 9 * round) / every;
        while (seen < wanted && read(reports[0], &report, 1) == 1) seen++;
        usleep((useconds_t)(round * 371 % 1000));
        kill(child, SIGKILL);
        int status;
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert(WIFSIGNALED(status), "the writer ended by itself: %d", WEXITSTATUS(status));
        while (read(reports[0], &report, 1) == 1) seen++;
        close(reports[0]);
        check_finished_steps(path, graph, seen * every, (seen + 1) * every);
    }
    fd_graph_free(graph);
}

Test(trace_crash, killed_between_the_tensors_of_a_step) {
    fd_graph *graph = fixture_graph(size);
    const char *path = fixture_path("between.h5");
    pid_t child = fork();
    if (child == 0) {
        fd_error err = {0};
        fd_trace_writer *writer = create_or_exit(path, graph, false);
        int32_t token = 1;
        if (step_and_flush(writer, graph, 0, 9, &err) != FD_OK ||
            fd_trace_begin_step(writer, FD_STEP_DECODE, &token, 1, 9, &err) != FD_OK)
            _exit(98);
        fd_observer observer = fd_trace_observer(writer);
        fixture_show(observer, graph, FD_NUMERICS_EXACT, 9, 1, &err);
        raise(SIGKILL);
    }
    waitpid(child, NULL, 0);
    check_finished_steps(path, graph, 9, 9);
    fd_graph_free(graph);
}

Test(trace_crash, abandoned_run_keeps_its_steps) {
    fd_graph *graph = fixture_graph(size);
    const char *path = fixture_path("abandoned.h5");
    fd_error err = {0};
    fd_trace_writer *writer = create_or_exit(path, graph, false);
    cr_assert_eq(fixture_step(writer, graph, FD_NUMERICS_EXACT, FD_STEP_PREFILL, 0, 4, &err), FD_OK);
    fd_trace_abandon(writer);
    check_finished_steps(path, graph, 4, 4);
    fd_trace_abandon(NULL);
    fd_graph_free(graph);
}

static void limit_file_size(off_t bytes) {
    struct rlimit limit = {(rlim_t)bytes, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
}

/* ---- space ---- */

Test(trace_crash, space_taken_ahead_is_given_back_when_the_file_is_closed) {
    enum { AHEAD = 4 << 20 };
    const char *path = fixture_path("ahead.h5");
    static const struct {
        const char *name;
        bool reserved, longer, failed, given_back;
    } cases[] = {{"nothing was taken, as far as the driver knows", false, false, false, false},
                 {"taken", true, false, false, true},
                 {"taken, then a write failed", true, false, true, true},
                 {"made longer", false, true, false, true},
                 {"made longer, then a write failed", false, true, true, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_h5_target target = {-1};
        fd_h5_guard guard = fd_h5_begin();
        struct stat there;
        hid_t access = fd_h5_target_access(&target), file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
        fd_h5_release(access);
        cr_assert_geq(file, 0);
        cr_assert_geq(H5Fflush(file, H5F_SCOPE_LOCAL), 0);
        int how = cases[i].longer ? 0 : FALLOC_FL_KEEP_SIZE;
        if (fallocate(target.fd, how, 0, AHEAD) != 0) cr_skip_test("this file system reserves nothing");
        if (cases[i].reserved) target.ahead.reserved = AHEAD;
        if (cases[i].longer) target.ahead.length = AHEAD;
        if (cases[i].failed) target.error = ENOSPC;
        cr_assert_geq(H5Fclose(file), 0);
        fd_h5_end(guard);
        cr_assert_eq(stat(path, &there), 0);
        cr_expect_lt(there.st_size, AHEAD, "%s: %lld bytes long", cases[i].name, (long long)there.st_size);
        cr_expect_eq(there.st_blocks * 512 < AHEAD, cases[i].given_back, "%s: %lld bytes on the disk", cases[i].name,
                     (long long)there.st_blocks * 512);
    }
}

/* ---- a full disk ---- */

static off_t size_of(const char *path) {
    struct stat there;
    return stat(path, &there) == 0 ? there.st_size : -1;
}

/* What the child of a full-disk test found wrong; 0: nothing. */
enum { NO_FAILURE = 1, WRONG_CODE, FILE_NOT_NAMED, NOT_STICKY, FINISHED_ANYWAY };

static int judge(fd_trace_writer *writer, fd_code code, const fd_error *first, const char *path) {
    fd_error err = {0};
    int32_t token = 1;
    if (code == FD_OK) return NO_FAILURE;
    if (code != FD_ERR_IO) return WRONG_CODE;
    if (!strstr(first->message, path)) return FILE_NOT_NAMED;
    if (fd_trace_begin_step(writer, FD_STEP_DECODE, &token, 1, 5, &err) != FD_ERR_IO) return NOT_STICKY;
    if (fd_trace_finish(writer, &err) != FD_ERR_IO) return FINISHED_ANYWAY;
    return 0;
}

/* Without a flush the failure comes with a later call, whichever it is, and with finish if there is none. */
static int wait_for_failure(fd_trace_writer *writer) {
    fd_error err = {0};
    fd_code code = fd_trace_finish(writer, &err);
    H5close();
    return code == FD_ERR_IO ? 0 : NO_FAILURE;
}

Test(trace_crash, full_disk_is_found_before_the_step_is_written) {
    fd_graph *graph = fixture_graph(size);
    const char *path = fixture_path("full.h5");
    pid_t child = fork();
    if (child == 0) {
        fd_error err = {0};
        fd_trace_writer *writer = create_or_exit(path, graph, false);
        if (step_and_flush(writer, graph, 0, 5, &err) != FD_OK) _exit(98);
        limit_file_size(size_of(path) + 100000);
        fd_code code = fixture_step(writer, graph, FD_NUMERICS_EXACT, FD_STEP_VERIFY, 5, 300, &err);
        if (code != FD_OK && !strstr(err.message, "no room")) _exit(97);
        _exit(judge(writer, code, &err, path));
    }
    int status;
    waitpid(child, &status, 0);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
    check_finished_steps(path, graph, 5, 5);
    fd_graph_free(graph);
}

/* The limit falls while HDF5 is writing: what a file system does that promised room and had none. */
Test(trace_crash, write_error_inside_hdf5_is_reported_and_finished_steps_stay) {
    fd_graph *graph = fixture_graph(size);
    const char *path = fixture_path("inside.h5");
    for (int round = 0; round < 4; round++) {
        pid_t child = fork();
        if (child == 0) {
            fd_error err = {0};
            int32_t tokens[300] = {0};
            fd_trace_writer *writer = create_or_exit(path, graph, false);
            for (int32_t pos = 0; pos < 5; pos++)
                if (step_and_flush(writer, graph, pos, 1, &err) != FD_OK) _exit(98);
            if (fd_trace_begin_step(writer, FD_STEP_VERIFY, tokens, 300, 5, &err) != FD_OK) _exit(97);
            limit_file_size(size_of(path) + (round + 1) * 50000);
            fd_code code = fixture_show(fd_trace_observer(writer), graph, FD_NUMERICS_EXACT, 5, 300, &err);
            if (code == FD_OK) code = fd_trace_end_step(writer, &err);
            if (code == FD_OK && round % 2) code = fd_trace_flush(writer, &err);
            if (code == FD_OK && round % 2 == 0) _exit(wait_for_failure(writer));
            int verdict = judge(writer, code, &err, path);
            H5close(); /* what HDF5 does at exit: it must not hang over what it could not write */
            _exit(verdict);
        }
        int status;
        waitpid(child, &status, 0);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "round %d: status %x", round, status);
        check_finished_steps(path, graph, 5, 5);
    }
    fd_graph_free(graph);
}

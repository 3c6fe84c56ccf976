/* A process that is killed at a write, or whose disk is full from there on, for every write that it makes: the file is
 * not there yet, or opens and holds every step that had been promised. The calls that change files are wrapped
 * (-Wl,--wrap). */
#include <criterion/criterion.h>
#include <errno.h>
#include <hdf5.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dumpers/hdf5/driver.h"
#include "fixture.h"
#include "tracer_rows.h"

/* ---- the n-th call ---- */

/* Shared with the child. */
typedef struct progress {
    int n_call, die_at, full_at; /* the call that does not return; the first that finds no room; 0: none */
    int promised;                /* steps that a caller was told of */
} progress;
static progress *shared;

/* Counts the call. */
static bool is_the_last(void) {
    return shared && __atomic_add_fetch(&shared->n_call, 1, __ATOMIC_RELAXED) == shared->die_at;
}

static bool is_full(void) {
    if (!shared || !shared->full_at || shared->n_call < shared->full_at) return false;
    errno = ENOSPC;
    return true;
}

static void die(void) {
    raise(SIGKILL);
}

ssize_t __real_pwrite(int fd, const void *data, size_t size, off_t at);
ssize_t __real_pwritev(int fd, const struct iovec *pieces, int n, off_t at);
int __real_ftruncate(int fd, off_t size);
int __real_rename(const char *from, const char *to);
ssize_t __wrap_pwrite(int fd, const void *data, size_t size, off_t at);
ssize_t __wrap_pwritev(int fd, const struct iovec *pieces, int n, off_t at);
int __wrap_ftruncate(int fd, off_t size);
int __wrap_rename(const char *from, const char *to);

/* The kernel ends a write of a killed process between two pages: what comes before the first border is in the file. */
static size_t before_border(off_t at, size_t size) {
    enum { PAGE = 4096 };
    size_t n = PAGE - (size_t)(at % PAGE);
    return n < size ? n : 0;
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t size, off_t at) {
    if (is_the_last()) {
        __real_pwrite(fd, data, before_border(at, size), at);
        die();
    }
    return is_full() ? -1 : __real_pwrite(fd, data, size, at);
}

ssize_t __wrap_pwritev(int fd, const struct iovec *pieces, int n, off_t at) {
    if (is_the_last()) {
        __real_pwrite(fd, pieces[0].iov_base, before_border(at, pieces[0].iov_len), at);
        die();
    }
    return is_full() ? -1 : __real_pwritev(fd, pieces, n, at);
}

int __wrap_ftruncate(int fd, off_t size) {
    if (is_the_last()) die();
    return is_full() ? -1 : __real_ftruncate(fd, size);
}

int __wrap_rename(const char *from, const char *to) {
    if (is_the_last()) die();
    return __real_rename(from, to);
}

/* ---- programs that write ---- */

enum { N_STEP = 2, WIDTH = 40, N_TENSOR = 2 };
#define RUN_TENSORS "blk.0.l_out,blk.1.l_out"

/* Later steps bring new tensors, for which the file is copied and takes its own place again. */
static int trace_with_the_library(const char *path) {
    fd_tracer_options options = {.engine = "killed", .synchronous = 1, .prompt = "And God said"};
    fd_tracer *tracer = fd_tracer_open(path, &options);
    for (int32_t step = 0; step < N_STEP; step++) {
        if (fd_tracer_step(tracer, &step, 1) == 0) shared->promised = step; /* the ones before it */
        for (int tensor = 0; tensor < N_TENSOR && tensor <= step; tensor++) {
            char name[32];
            float *row = rows_of(step, 1, WIDTH);
            snprintf(name, sizeof name, "blk.%d.l_out", tensor);
            fd_tracer_put_f32(tracer, name, row, 1, WIDTH);
            free(row);
        }
    }
    return fd_tracer_close(tracer, NULL, 0);
}

static int trace_a_run(const char *path) {
    fd_error err = {0};
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_options options = fd_trace_defaults(path);
    fd_trace_info info = fixture_info();
    fd_trace_writer *writer;
    options.one_thread = true;
    options.tensors = RUN_TENSORS;
    if (fd_trace_create(&options, &info, graph, FD_NUMERICS_EXACT, &writer, &err) != FD_OK) return 1;
    for (int32_t pos = 0; pos < N_STEP; pos++) {
        if (fixture_step(writer, graph, FD_NUMERICS_EXACT, FD_STEP_DECODE, pos, 1, &err) != FD_OK ||
            fd_trace_flush(writer, &err) != FD_OK)
            return 1;
        shared->promised = pos + 1;
    }
    return fd_trace_finish(writer, &err) != FD_OK;
}

/* Completes a trace as it was once done: the attributes are deleted and made anew. */
static int complete_by_deleting(const char *path) {
    fd_h5_target target = {-1};
    progress how = *shared;
    *shared = (progress){0};
    if (trace_with_the_library(path) != 0) return 1;
    *shared = (progress){.die_at = how.die_at};
    fd_h5_guard guard = fd_h5_begin();
    hid_t access = fd_h5_target_access(&target), file = H5Fopen(path, H5F_ACC_RDWR, access);
    fd_h5_release(access);
    bool ok = file >= 0 && H5Adelete(file, "finished") >= 0 && fd_h5_put_string(file, "finished", "now") &&
              H5Adelete(file, "complete") >= 0 && fd_h5_put_int(file, "complete", 1);
    ok = H5Fclose(file) >= 0 && ok;
    fd_h5_end(guard);
    return !ok;
}

/* ---- what must be there ---- */

/* As h5py, HDFView and h5dump open it: without knowing that it was being written. */
static bool plain_hdf5_opens(const char *path) {
    fd_h5_guard guard = fd_h5_begin();
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), root = file < 0 ? -1 : H5Gopen2(file, "/", H5P_DEFAULT);
    if (root >= 0) H5Gclose(root);
    if (file >= 0) H5Fclose(file);
    fd_h5_end(guard);
    return root >= 0;
}

/* NULL: all is there. */
static const char *missing(const char *path, bool ended, bool of_run) {
    static char what[sizeof((fd_error *)0)->message];
    fd_error err = {0};
    fd_trace *trace;
    if (access(path, F_OK) != 0) return shared->promised ? "no file" : NULL;
    if (!plain_hdf5_opens(path)) return "HDF5 refuses the file";
    if (fd_trace_open(path, &trace, &err) != FD_OK) {
        snprintf(what, sizeof what, "%s", err.message);
        return what;
    }
    int32_t n_pos = fd_trace_n_pos(trace);
    bool whole = fd_trace_get_info(trace)->complete && fd_trace_get_info(trace)->finished[0];
    const char *wrong = n_pos < shared->promised || n_pos > N_STEP ? "promised steps are missing"
                        : ended && (n_pos != N_STEP || !whole)     ? "it ended, and the file is not whole"
                                                                   : NULL;
    for (int32_t pos = 0; !wrong && !of_run && pos < n_pos; pos++)
        for (int tensor = 0; tensor <= pos; tensor++) {
            char name[32];
            snprintf(name, sizeof name, "blk.%d.l_out", tensor);
            check_row(trace, name, pos, WIDTH);
        }
    fd_graph *graph = !wrong && of_run ? fixture_graph(fixture_small) : NULL;
    for (int32_t pos = 0; graph && pos < n_pos; pos++) {
        fixture_check_tensor(trace, graph, "blk.0.l_out", pos);
        fixture_check_tensor(trace, graph, "blk.1.l_out", pos);
    }
    fd_graph_free(graph);
    fd_trace_close(trace);
    return wrong;
}

/* How the program went with its n-th write killed or refused; ends the test when that was no way to go. */
static bool went_through(int (*program)(const char *), const char *path, progress how) {
    int status;
    unlink(path);
    *shared = how;
    pid_t child = fork();
    if (child == 0) _exit(program(path));
    cr_assert_eq(waitpid(child, &status, 0), child);
    bool reached = shared->n_call >= how.die_at + how.full_at;
    if (how.die_at)
        cr_assert(reached ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status) && status == 0,
                  "killed at write %d: status %x", how.die_at, status);
    else
        cr_assert(WIFEXITED(status) && (WEXITSTATUS(status) != 0) == reached, "full at write %d: status %x",
                  how.full_at, status);
    shared->die_at = shared->full_at = 0;
    return !reached;
}

/* How many writes the program makes; the first that leaves something else than promised is *broken, and `why`. */
static int at_every_write(int (*program)(const char *), bool full, const char *name, int *broken, const char **why) {
    const char *path = fixture_path(name);
    *broken = 0;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(shared, MAP_FAILED);
    for (int n = 1;; n++) {
        bool ended = went_through(program, path, full ? (progress){.full_at = n} : (progress){.die_at = n});
        *why = missing(path, ended, program == trace_a_run);
        if (*why) *broken = n;
        if (*why || ended) return n - 1;
    }
}

static void check_every_write(int (*program)(const char *), bool full, const char *name) {
    int broken;
    const char *why;
    int n = at_every_write(program, full, name, &broken, &why);
    cr_expect_not(broken, "%s at write %d: %s", full ? "full" : "killed", broken, why);
    cr_expect_gt(n, 80, "%d writes", n);
}

Test(trace_killed, at_no_write_a_traced_host_loses_what_was_promised) {
    check_every_write(trace_with_the_library, false, "host.h5");
}

Test(trace_killed, at_no_write_a_run_loses_what_was_promised) {
    check_every_write(trace_a_run, false, "run.h5");
}

Test(trace_killed, a_disk_full_at_any_write_costs_a_traced_host_no_step) {
    check_every_write(trace_with_the_library, true, "host-full.h5");
}

Test(trace_killed, a_disk_full_at_any_write_costs_a_run_no_step) {
    check_every_write(trace_a_run, true, "run-full.h5");
}

Test(trace_killed, attributes_deleted_and_made_anew_are_noticed) {
    int broken;
    const char *why;
    at_every_write(complete_by_deleting, false, "deleted.h5", &broken, &why);
    cr_expect(broken, "a root whose header was half written passes");
}

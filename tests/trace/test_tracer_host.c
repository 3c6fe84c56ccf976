/* What libfirstdiff_trace promises to the program that calls it: it is never stopped or changed.
 * tracer_exits.c has what ends in exit(). */
#include <criterion/criterion.h>
#include <errno.h>
#include <fenv.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"
#include "tracer_steps.h"

static float data[16 * WIDTH];

static void check_steps(const char *path, int32_t least, int32_t most, bool complete) {
    char why[1200];
    cr_assert(holds_steps(path, data, least, most, complete, why), "%s", why);
}

/* ---- state ---- */

static fenv_t state_before;
static sigset_t mask_before;

static void set_state(void) {
    feclearexcept(FE_ALL_EXCEPT);
    feraiseexcept(FE_UNDERFLOW);
    fesetround(FE_UPWARD);
    feenableexcept(FE_DIVBYZERO | FE_INVALID); /* an invalid operation of ours would end the program */
    fegetenv(&state_before);
    sigprocmask(SIG_SETMASK, NULL, &mask_before);
    errno = 4711;
}

static void check_state(const char *call) {
    int error = errno;
    sigset_t mask, pending;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    sigpending(&pending);
    int traps = fegetexcept(), flags = fetestexcept(FE_ALL_EXCEPT), mode = fegetround();
    fedisableexcept(FE_ALL_EXCEPT); /* the assertions themselves are free to compute */
    cr_expect_eq(error, 4711, "%s: errno %d", call, error);
    cr_expect_eq(mode, FE_UPWARD, "%s: rounding", call);
    cr_expect_eq(flags, FE_UNDERFLOW, "%s: flags %x", call, flags);
    cr_expect_eq(traps, FE_DIVBYZERO | FE_INVALID, "%s: traps %x", call, traps);
    for (int s = 1; s < NSIG; s++)
        cr_expect_eq(sigismember(&mask, s), sigismember(&mask_before, s), "%s: signal %d", call, s);
    cr_expect(sigisemptyset(&pending), "%s: a signal is pending", call);
    feenableexcept(traps);
    errno = 4711;
}

Test(tracer_host, no_call_changes_errno_signals_or_floating_point) {
    const char *path = fixture_path("state.h5");
    uint32_t signalling = 0x7fa00001; /* comparing it would raise FE_INVALID */
    memcpy(&data[3], &signalling, 4);
    data[4] = 1e-44f;
    int8_t small[WIDTH] = {1, -2};
    fd_tracer_tensor ints = {
        .name = "ints", .dtype = FD_TRACER_I8, .data = small, .n_dim = 2, .shape = {1, WIDTH}, .first = 1, .count = 1};
    set_state();
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    check_state("open");
    int off = fd_tracer_put_weight_f32(tracer, "w", data, 2, WIDTH);
    check_state("a weight");
    int failed = off | put_step(tracer, data, 2);
    check_state("step and puts");
    failed |= fd_tracer_put(tracer, &ints);
    check_state("a put of integers");
    failed |= put_step(tracer, data, 1);
    check_state("a step that is written");
    failed |= fd_tracer_close(tracer, NULL, 0);
    check_state("close");
    tracer = fd_tracer_open("/nonexistent/x.h5", NULL);
    check_state("an open that fails");
    put_step(tracer, data, 1);
    check_state("a step of a trace that is off");
    fd_tracer_close(tracer, NULL, 0);
    check_state("close of a trace that is off");
    fedisableexcept(FE_ALL_EXCEPT);
    fesetround(FE_TONEAREST);
    cr_expect_eq(failed, 0);
    fd_error err = {0};
    float row[WIDTH];
    fd_trace *trace = fixture_open(path);
    cr_assert_eq(fd_trace_read(trace, 0, 0, row, NULL, &err), FD_OK, "%s", err.message);
    cr_expect_eq(memcmp(row, data, sizeof row), 0, "the bits are not the host's");
    fd_trace_close(trace);
}

/* A signal of the host's own stays its own. */
Test(tracer_host, a_pending_SIGXFSZ_of_the_host_is_left_to_it) {
    sigset_t mask, pending;
    sigemptyset(&mask);
    sigaddset(&mask, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    raise(SIGXFSZ);
    fd_tracer *tracer = fd_tracer_open(fixture_path("pending.h5"), NULL);
    put_step(tracer, data, 1);
    cr_expect_eq(fd_tracer_close(tracer, NULL, 0), 0);
    sigpending(&pending);
    cr_expect(sigismember(&pending, SIGXFSZ), "the host's signal was taken");
    signal(SIGXFSZ, SIG_IGN);
    sigprocmask(SIG_UNBLOCK, &mask, NULL);
}

/* ---- kill ---- */

Test(tracer_host, killed_at_any_moment_the_file_opens_and_says_how_far) {
    const char *path = fixture_path("killed.h5");
    for (int round = 0; round < 20; round++) {
        fd_tracer_options options = {.synchronous = round % 2};
        int reports[2], status;
        char report;
        cr_assert_eq(pipe(reports), 0);
        pid_t child = fork();
        if (child == 0) {
            fd_tracer *tracer = fd_tracer_open(path, &options);
            for (int i = 0;; i++) {
                if (put_step(tracer, data, 1)) _exit(1);
                if (i % 7 == 6) { /* now and then a new name: the file is copied and replaced */
                    char name[32];
                    snprintf(name, sizeof name, "new.%d", i);
                    fd_tracer_put_f32(tracer, name, data, 1, WIDTH);
                }
                if (write(reports[1], "s", 1) != 1) _exit(2);
            }
        }
        close(reports[1]);
        int32_t seen = 0, wanted = 1 + 2 * round;
        while (seen < wanted && read(reports[0], &report, 1) == 1) seen++;
        usleep((useconds_t)(round * 1371 % 5000));
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        cr_assert(WIFSIGNALED(status), "the writer ended by itself: %d", WEXITSTATUS(status));
        while (read(reports[0], &report, 1) == 1) seen++;
        close(reports[0]);
        /* a report of step i comes when i - 1 is on its way to the disk, or eight at most wait for the thread */
        int32_t least = options.synchronous ? seen - 1 : seen - 9;
        fd_trace *trace;
        fd_error err = {0};
        cr_assert_eq(fd_trace_open(path, &trace, &err), FD_OK, "round %d: %s", round, err.message);
        int32_t n_pos = fd_trace_n_pos(trace);
        cr_expect(n_pos >= least && n_pos <= seen + 1, "%d positions after %d reports", n_pos, seen);
        cr_expect_not(fd_trace_get_info(trace)->complete);
        for (int32_t pos = 0; pos < n_pos; pos++) {
            float row[WIDTH];
            int32_t node = fd_trace_find(trace, "blk.19.l_out");
            cr_assert_eq(fd_trace_read(trace, node, pos, row, NULL, &err), FD_OK, "%s", err.message);
        }
        fd_trace_close(trace);
        unlink(path);
    }
}

Test(tracer_host, a_changed_directory_does_not_move_the_trace) {
    char here[4096];
    const char *path = fixture_path("moved.h5");
    cr_assert_not_null(getcwd(here, sizeof here));
    char directory[256];
    snprintf(directory, sizeof directory, "%s", path);
    *strrchr(directory, '/') = '\0';
    cr_assert_eq(chdir(directory), 0);
    fd_tracer *tracer = fd_tracer_open("moved.h5", NULL);
    cr_assert_eq(chdir("/"), 0);
    put_step(tracer, data, 1);
    char message[1024];
    cr_assert_eq(fd_tracer_close(tracer, message, sizeof message), 0, "%s", message);
    cr_assert_eq(chdir(here), 0);
    check_steps(path, 1, 1, true);
}

/* threads FOLDER: what has threads of its own, for ThreadSanitizer, under which Criterion cannot start: the trace writer with its helpers,
 * tracers called from several threads at once, forked from, closed while others call. Ends with 0, or names what failed. With an
 * argument "race" or "unlocked" it does what must be found: two threads that write one word, HDF5 without its lock. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dumpers/hdf5/driver.h"
#include "fixture.h"
#include "tracer_steps.h"

enum { N_THREAD = 4, N_STEP = 12, WRITER_PREFILL = 20, WRITER_DECODE = 30 };

static char path[1024];
static float data[16 * WIDTH];

/* ---- the trace writer ---- */

static void write_trace(const fd_graph *graph, fd_trace_options options) {
    fd_error err = {0};
    fd_trace_info info = fixture_info();
    fd_trace_writer *writer;
    fd_code code = fd_trace_create(&options, &info, graph, FD_NUMERICS_EXACT, &writer, &err);
    CHECK(code == FD_OK, "%s", err.message);
    for (int32_t pos = 0; code == FD_OK && pos < WRITER_PREFILL + WRITER_DECODE; pos += pos ? 1 : WRITER_PREFILL)
        code = fixture_step(writer, graph, FD_NUMERICS_EXACT, pos ? FD_STEP_DECODE : FD_STEP_PREFILL, pos,
                            pos ? 1 : WRITER_PREFILL, &err);
    if (code == FD_OK) code = fd_trace_finish(writer, &err);
    CHECK(code == FD_OK, "%s", err.message);
    fd_trace *trace;
    CHECK(fd_trace_open(options.path, &trace, &err) == FD_OK, "%s", err.message);
    CHECK(fd_trace_n_pos(trace) == WRITER_PREFILL + WRITER_DECODE, "%d positions", fd_trace_n_pos(trace));
    fd_trace_close(trace);
}

static void writer_with_helpers(void) {
    fd_graph *graph = fixture_graph(fixture_small);
    for (int i = 0; i < 4; i++) {
        fd_trace_options options = fd_trace_defaults(path);
        options.helpers = i == 3 ? 1 : 4;
        options.level = i == 1 ? FD_TRACE_STATS : i == 2 ? FD_TRACE_FINGERPRINT : FD_TRACE_FULL;
        options.compress = i == 3;
        options.memory = i == 0 ? 100000 : 0; /* full again and again */
        write_trace(graph, options);
    }
    fd_graph_free(graph);
}

/* ---- tracers ---- */

typedef struct worker {
    fd_tracer *tracer;
    int first;
} worker;

static void *put_some(void *user) {
    const worker *w = user;
    for (int i = w->first; i < N_TENSOR; i += N_THREAD) {
        char name[32];
        snprintf(name, sizeof name, "blk.%d.l_out", i);
        fd_tracer_put_f32(w->tracer, name, data, 1, WIDTH);
        fd_tracer_error(w->tracer);
    }
    return NULL;
}

static void run_threads(void *(*run)(void *), worker workers[N_THREAD]) {
    pthread_t threads[N_THREAD];
    for (int i = 0; i < N_THREAD; i++) CHECK(pthread_create(&threads[i], NULL, run, &workers[i]) == 0, "no thread");
    for (int i = 0; i < N_THREAD; i++) pthread_join(threads[i], NULL);
}

static void several_threads_put_at_once(bool synchronous, size_t memory) {
    static const int32_t token = 1;
    char why[1200];
    fd_tracer_options options = {.synchronous = synchronous, .memory = memory};
    fd_tracer *tracer = fd_tracer_open(path, &options);
    worker workers[N_THREAD];
    for (int i = 0; i < N_THREAD; i++) workers[i] = (worker){tracer, i};
    for (int step = 0; step < N_STEP; step++) {
        fd_tracer_step(tracer, &token, 1);
        run_threads(put_some, workers);
    }
    CHECK(fd_tracer_close(tracer, why, sizeof why) == 0, "%s", why);
    CHECK(holds_steps(path, data, N_STEP, N_STEP, true, why), "%s", why);
}

static void *trace_alone(void *user) {
    const worker *w = user;
    char own[1100], message[1024];
    snprintf(own, sizeof own, "%s.%d", path, w->first);
    fd_tracer_options options = {.synchronous = w->first % 2};
    fd_tracer *tracer = fd_tracer_open(own, &options);
    for (int step = 0; step < N_STEP; step++) put_step(tracer, data, 1);
    CHECK(fd_tracer_close(tracer, message, sizeof message) == 0, "%s", message);
    return NULL;
}

static void a_tracer_in_each_thread(void) {
    worker workers[N_THREAD];
    char own[1100], why[1200];
    for (int i = 0; i < N_THREAD; i++) workers[i] = (worker){NULL, i};
    run_threads(trace_alone, workers);
    for (int i = 0; i < N_THREAD; i++) {
        snprintf(own, sizeof own, "%s.%d", path, i);
        CHECK(holds_steps(own, data, N_STEP, N_STEP, true, why), "%s: %s", own, why);
        unlink(own);
    }
}

static void *close_it(void *user) {
    const worker *w = user;
    if (w->first) return put_some(user);
    fd_tracer_close(w->tracer, NULL, 0);
    return NULL;
}

static void closed_while_others_put(void) {
    static const int32_t token = 1;
    worker workers[N_THREAD];
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    fd_tracer_step(tracer, &token, 1);
    for (int i = 0; i < N_THREAD; i++) workers[i] = (worker){tracer, i};
    run_threads(close_it, workers);
}

static void forked_while_the_thread_writes(void) {
    char why[1200];
    fd_tracer *tracer = fd_tracer_open(path, NULL);
    for (int step = 0; step < N_STEP; step++) {
        put_step(tracer, data, 1);
        pid_t child = step % 4 == 1 ? fork() : 1;
        if (child == 0) _exit(put_step(tracer, data, 1) == 0); /* it must be off */
        int status = 0;
        if (step % 4 == 1) waitpid(child, &status, 0);
        CHECK(status == 0, "the child traced on, or died: %x", status);
    }
    CHECK(fd_tracer_close(tracer, why, sizeof why) == 0, "%s", why);
    CHECK(holds_steps(path, data, N_STEP, N_STEP, true, why), "%s", why);
}

/* ---- what must be found ---- */

static int word;

static void *write_the_word(void *user) {
    (void)user;
    for (int i = 0; i < 1000; i++) word++;
    return NULL;
}

static void race(void) {
    worker workers[N_THREAD] = {0};
    run_threads(write_the_word, workers);
}

static void unlocked(void) {
    fd_h5_target target = {-1};
    hid_t access = fd_h5_target_access(&target), file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    fd_h5_release(access);
    fd_h5_release(file);
}

static void fail_on_abort(int signal_number) {
    (void)signal_number;
    _exit(1); /* CTest takes a signal for a failure of another kind than the one that it expects */
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    snprintf(path, sizeof path, "%s/threads-%ld.h5", argv[1], (long)getpid());
    for (int i = 0; i < WIDTH; i++) data[i] = (float)i;
    if (argc > 2) {
        signal(SIGABRT, fail_on_abort);
        (strcmp(argv[2], "race") == 0 ? race : unlocked)();
        unlink(path);
        return 0;
    }
    writer_with_helpers();
    several_threads_put_at_once(false, 0);
    several_threads_put_at_once(false, 20000); /* some are written while others put */
    several_threads_put_at_once(true, 0);
    a_tracer_in_each_thread();
    closed_while_others_put();
    forked_while_the_thread_writes();
    unlink(path);
    return 0;
}

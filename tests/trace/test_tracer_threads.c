/* libfirstdiff_trace called by several threads of an engine. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "fixture.h"
#include "tracer_rows.h"

static const int32_t tokens[] = {11, 12, 13, 14};

enum { N_THREAD = 4, N_EACH = 25 };
typedef struct worker {
    fd_tracer *tracer;
    int id;
    int32_t pos0, n;
} worker;

static void *put_many(void *user) {
    const worker *w = user;
    float *x = rows_of(w->pos0, w->n, 32);
    for (int i = 0; i < N_EACH; i++) {
        char name[64];
        snprintf(name, sizeof name, "t%d.%d", w->id, i);
        fd_tracer_put_f32(w->tracer, name, x, w->n, 32);
        /* and a row each of a common tensor */
        if (w->id < w->n) {
            fd_tracer_tensor part = {.name = "common",
                                     .dtype = FD_TRACER_F32,
                                     .data = x + w->id * 32,
                                     .n_dim = 2,
                                     .shape = {1, 32},
                                     .first = w->pos0 + w->id,
                                     .count = 1};
            fd_tracer_put(w->tracer, &part);
        }
    }
    free(x);
    return NULL;
}

Test(tracer_threads, several_threads_put_at_once) {
    const char *path = fixture_path("tracer_threads.h5");
    fd_tracer_options options = {.memory = 20000}; /* some are written while others put */
    fd_tracer *tracer = fd_tracer_open(path, &options);
    for (int step = 0; step < 3; step++) {
        pthread_t threads[N_THREAD];
        worker workers[N_THREAD];
        fd_tracer_step(tracer, tokens, N_THREAD);
        for (int t = 0; t < N_THREAD; t++) {
            workers[t] = (worker){tracer, t, step * N_THREAD, N_THREAD};
            pthread_create(&threads[t], NULL, put_many, &workers[t]);
        }
        for (int t = 0; t < N_THREAD; t++) pthread_join(threads[t], NULL);
    }
    close_well(tracer);
    fd_trace *trace = fixture_open(path);
    cr_assert_eq(fd_trace_n_node(trace), N_THREAD * N_EACH + 1);
    for (int32_t pos = 0; pos < 3 * N_THREAD; pos++) {
        check_row(trace, "common", pos, 32);
        check_row(trace, "t3.24", pos, 32);
        check_row(trace, "t0.0", pos, 32);
    }
    fd_trace_close(trace);
}

Test(tracer_threads, two_traces_in_two_threads_at_once) {
    fd_tracer *tracers[2];
    pthread_t threads[2];
    worker workers[2];
    char paths[2][256];
    for (int t = 0; t < 2; t++) {
        snprintf(paths[t], sizeof paths[t], "%s", fixture_path(t ? "tracer_two_b.h5" : "tracer_two_a.h5"));
        fd_tracer_options options = {.memory = 1};
        tracers[t] = fd_tracer_open(paths[t], &options);
        fd_tracer_step(tracers[t], tokens, 2);
        workers[t] = (worker){tracers[t], t, 0, 2};
        pthread_create(&threads[t], NULL, put_many, &workers[t]);
    }
    for (int t = 0; t < 2; t++) {
        pthread_join(threads[t], NULL);
        close_well(tracers[t]);
        fd_trace *trace = fixture_open(paths[t]);
        for (int32_t pos = 0; pos < 2; pos++) check_row(trace, t ? "t1.7" : "t0.7", pos, 32);
        fd_trace_close(trace);
    }
}

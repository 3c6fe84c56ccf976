/* host FILE STEPS THREADS [synchronous]: a program that traces with libfirstdiff_trace, to be killed (scripts/campaign). Writes a
 * byte to standard output whenever a step has been begun, so that whoever kills it knows how far it got. The same arguments
 * always give the same trace. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dumpers/client/firstdiff_trace.h"

enum { N_TENSOR = 24, WIDTH = 400, MAX_THREAD = 16 };

typedef struct worker {
    fd_tracer *tracer;
    int first, stride, step;
} worker;

/* Every n-th tensor of a step, each with elements of its own. */
static void *put_some(void *user) {
    const worker *w = user;
    float row[WIDTH];
    for (int tensor = w->first; tensor < N_TENSOR; tensor += w->stride) {
        char name[32];
        for (int i = 0; i < WIDTH; i++) row[i] = (float)(w->step * 1000 + tensor) + (float)i / WIDTH;
        snprintf(name, sizeof name, "blk.%d.l_out", tensor);
        fd_tracer_put_f32(w->tracer, name, row, 1, WIDTH);
    }
    return NULL;
}

static void put_step(fd_tracer *tracer, int step, int n_thread) {
    pthread_t threads[MAX_THREAD];
    worker workers[MAX_THREAD];
    for (int i = 0; i < n_thread; i++) {
        workers[i] = (worker){tracer, i, n_thread, step};
        if (i > 0 && pthread_create(&threads[i], NULL, put_some, &workers[i]) != 0) abort();
    }
    put_some(&workers[0]);
    for (int i = 1; i < n_thread; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int n_step = atoi(argv[2]), n_thread = atoi(argv[3]);
    fd_tracer_options options = {.engine = "host", .synchronous = argc > 4 && strcmp(argv[4], "synchronous") == 0};
    char message[1024];
    if (n_thread < 1 || n_thread > MAX_THREAD) return 2;
    fd_tracer *tracer = fd_tracer_open(argv[1], &options);
    for (int step = 0; step < n_step; step++) {
        fd_tracer_step(tracer, &step, 1);
        if (write(1, "s", 1) != 1) return 3;
        put_step(tracer, step, n_thread);
    }
    if (fd_tracer_close(tracer, message, sizeof message) == 0) return 0;
    fprintf(stderr, "%s\n", message);
    return 1;
}

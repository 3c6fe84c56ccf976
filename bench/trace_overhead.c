/* trace_overhead [FILE.h5]: what libfirstdiff_trace costs an engine.
 *
 * 1. Puts of 16 KiB tensors: microseconds for each in a decode step, written to the file, or without a trace.
 * 2. A decode loop: 16 layers of three matrix-vector products in plain C over 96 MiB of weights, one thread, seven
 *    tensors a layer recorded: milliseconds a token without and with a trace, taking turns, medians.
 *
 * In processor time: of the thread that calls, and of all threads up to the end of fd_tracer_close. `synchronous`: written
 * by the calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dumpers/client/firstdiff_trace.h"

enum { N_ROUND = 7, N_TENSOR = 400, N_STEP = 12, WIDTH = 4096, N_LAYER = 16, N_EMBD = 512, N_FF = 1024 };

/* Other programs do not count, waiting for a slow disk neither. */
static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct cost {
    double caller, all; /* seconds: of the calling thread, of the process */
} cost;

static cost now(void) {
    return (cost){seconds_of(CLOCK_THREAD_CPUTIME_ID), seconds_of(CLOCK_PROCESS_CPUTIME_ID)};
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, rising);
    return x[n / 2];
}

/* What was spent since `begin`, for each of n. */
static cost end(fd_tracer *tracer, cost begin, int n) {
    char message[1024];
    int failed = fd_tracer_close(tracer, message, sizeof message);
    if (failed) {
        fprintf(stderr, "%s\n", message);
        exit(2);
    }
    cost then = now();
    return (cost){(then.caller - begin.caller) / n, (then.all - begin.all) / n};
}

/* For each put, steps included, the file's first step (which makes the datasets) not. */
static cost puts_of(fd_tracer *tracer, const float *data) {
    static char names[N_TENSOR][32];
    cost begin = {0};
    for (int i = 0; i < N_TENSOR; i++) snprintf(names[i], sizeof names[i], "blk.%d.t%d", i / 12, i % 12);
    for (int step = 0; step <= N_STEP; step++) {
        int32_t token = step;
        fd_tracer_step(tracer, &token, 1);
        if (step == 1) begin = now();
        for (int i = 0; i < N_TENSOR; i++) fd_tracer_put_f32(tracer, names[i], data, 1, WIDTH);
    }
    return end(tracer, begin, N_STEP * N_TENSOR);
}

/* ---- the decode loop ---- */

static void matvec(const float *w, const float *x, int n_in, int n_out, float *y) {
    for (int o = 0; o < n_out; o++) {
        float sum[8] = {0};
        for (int i = 0; i < n_in; i += 8)
            for (int k = 0; k < 8; k++) sum[k] += w[(size_t)o * (size_t)n_in + (size_t)(i + k)] * x[i + k];
        y[o] = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
    }
}

/* For each token. */
static cost decode(const float *weights, fd_tracer *tracer) {
    float x[N_EMBD], gate[N_FF], up[N_FF], act[N_FF], down[N_EMBD];
    for (int i = 0; i < N_EMBD; i++) x[i] = 1e-3f * (float)i;
    cost begin = {0};
    for (int32_t step = 0; step <= N_STEP; step++) {
        const float *w = weights;
        fd_tracer_step(tracer, &step, 1);
        if (step == 1) begin = now();
        for (int layer = 0; layer < N_LAYER; layer++) {
            char name[32];
            const struct {
                const char *name;
                const float *data;
                int n;
            } tensors[] = {{"ffn_inp", x, N_EMBD}, {"ffn_norm", x, N_EMBD}, {"ffn_gate", gate, N_FF},
                           {"ffn_up", up, N_FF},   {"ffn_act", act, N_FF},  {"ffn_down", down, N_EMBD},
                           {"l_out", x, N_EMBD}};
            matvec(w, x, N_EMBD, N_FF, gate);
            matvec(w + N_EMBD * N_FF, x, N_EMBD, N_FF, up);
            for (int i = 0; i < N_FF; i++) act[i] = gate[i] * up[i];
            matvec(w + 2 * N_EMBD * N_FF, act, N_FF, N_EMBD, down);
            for (int i = 0; i < N_EMBD; i++) x[i] = 0.5f * x[i] + 1e-6f * down[i];
            for (int i = 0; i < 7; i++) {
                snprintf(name, sizeof name, "blk.%d.%s", layer, tensors[i].name);
                fd_tracer_put_f32(tracer, name, tensors[i].data, 1, tensors[i].n);
            }
            w += 3 * N_EMBD * N_FF;
        }
    }
    return end(tracer, begin, N_STEP);
}

enum { NO_TRACE, BESIDE, SYNCHRONOUS, N_WAY };
static const char *const ways[] = {"no trace", "default", "synchronous"};

static fd_tracer *open_way(int way, const char *path) {
    fd_tracer_options options = {.synchronous = way == SYNCHRONOUS};
    return fd_tracer_open(way == NO_TRACE ? NULL : path, &options);
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "trace_overhead.h5";
    size_t n = (size_t)N_LAYER * 3 * N_EMBD * N_FF;
    float *weights = malloc(n * sizeof *weights), *data = calloc(WIDTH, sizeof *data);
    double put[N_WAY][2][N_ROUND], token[N_WAY][2][N_ROUND];
    if (!weights || !data) return 2;
    unsetenv("FIRSTDIFF_TRACE");
    for (size_t i = 0; i < n; i++) weights[i] = (float)(i % 17) * 1e-3f - 8e-3f;
    for (int r = 0; r < N_ROUND; r++)
        for (int way = 0; way < N_WAY; way++) {
            cost c = puts_of(open_way(way, path), data), d = decode(weights, open_way(way, path));
            put[way][0][r] = c.caller;
            put[way][1][r] = c.all;
            token[way][0][r] = d.caller;
            token[way][1][r] = d.all;
            unlink(path);
        }
    printf("%-12s %26s %34s\n%-12s %13s %12s %17s %16s\n", "", "put of 16 KiB, us", "decode loop, ms a token", "",
           "calling thread", "all threads", "calling thread", "all threads");
    for (int way = 0; way < N_WAY; way++)
        printf("%-12s %14.3f %12.3f %17.3f %16.3f\n", ways[way], 1e6 * median(put[way][0], N_ROUND),
               1e6 * median(put[way][1], N_ROUND), 1e3 * median(token[way][0], N_ROUND),
               1e3 * median(token[way][1], N_ROUND));
    free(weights);
    free(data);
    return 0;
}

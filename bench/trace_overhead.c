/* trace_overhead [FILE.h5]: what libfirstdiff_trace costs an engine.
 *
 * 1. Puts of 16 KiB tensors: microseconds for each in a decode step, written to the file, or without a trace.
 * 2. A decode loop: 16 layers of three matrix-vector products in plain C over 96 MiB of weights, one thread, seven
 *    tensors a layer recorded: milliseconds a token without and with a trace, taking turns, medians.
 *
 * Both in processor time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "dumpers/firstdiff_trace.h"

enum { N_ROUND = 7, N_TENSOR = 400, N_STEP = 12, WIDTH = 4096, N_LAYER = 16, N_EMBD = 512, N_FF = 1024 };

/* Of this process's own processor time: other programs do not count, waiting for a slow disk neither. */
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n) {
    qsort(x, (size_t)n, sizeof *x, rising);
    return x[n / 2];
}

static void end(fd_tracer *tracer) {
    char message[1024];
    if (fd_tracer_close(tracer, message, sizeof message) == 0) return;
    fprintf(stderr, "%s\n", message);
    exit(2);
}

/* Seconds for each put, steps included, the file's first step (which makes the datasets) not. */
static double puts_of(fd_tracer *tracer, const float *data) {
    static char names[N_TENSOR][32];
    double begin = 0;
    for (int i = 0; i < N_TENSOR; i++) snprintf(names[i], sizeof names[i], "blk.%d.t%d", i / 12, i % 12);
    for (int step = 0; step <= N_STEP; step++) {
        int32_t token = step;
        fd_tracer_step(tracer, &token, 1);
        if (step == 1) begin = now();
        for (int i = 0; i < N_TENSOR; i++) fd_tracer_put_f32(tracer, names[i], data, 1, WIDTH);
    }
    end(tracer);
    return (now() - begin) / (N_STEP * N_TENSOR);
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

/* Seconds a token. */
static double decode(const float *weights, fd_tracer *tracer) {
    float x[N_EMBD], gate[N_FF], up[N_FF], act[N_FF], down[N_EMBD];
    for (int i = 0; i < N_EMBD; i++) x[i] = 1e-3f * (float)i;
    double begin = 0;
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
    double seconds = (now() - begin) / N_STEP;
    end(tracer);
    return seconds;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "trace_overhead.h5";
    size_t n = (size_t)N_LAYER * 3 * N_EMBD * N_FF;
    float *weights = malloc(n * sizeof *weights), *data = calloc(WIDTH, sizeof *data);
    double on[N_ROUND], off[N_ROUND], none[N_ROUND], traced[N_ROUND];
    if (!weights || !data) return 2;
    unsetenv("FIRSTDIFF_TRACE");
    for (size_t i = 0; i < n; i++) weights[i] = (float)(i % 17) * 1e-3f - 8e-3f;
    for (int r = 0; r < N_ROUND; r++) {
        on[r] = puts_of(fd_tracer_open(path, NULL), data);
        off[r] = puts_of(fd_tracer_open(NULL, NULL), data);
        none[r] = decode(weights, fd_tracer_open(NULL, NULL));
        traced[r] = decode(weights, fd_tracer_open(path, NULL));
        unlink(path);
    }
    double put = median(on, N_ROUND), idle = median(off, N_ROUND), plain = median(none, N_ROUND),
           with = median(traced, N_ROUND);
    printf("put of 16 KiB, %d a step   %.2f us, %.0f a second, %.0f MB/s; without a trace %.3f us\n", N_TENSOR,
           1e6 * put, 1 / put, WIDTH * 4e-6 / put, 1e6 * idle);
    printf("decode loop, %d tensors a token   %.3f ms without, %.3f ms with a trace: %.2f times\n", 7 * N_LAYER,
           1e3 * plain, 1e3 * with, with / plain);
    free(weights);
    free(data);
    return 0;
}

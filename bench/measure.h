/* What the programs here measure with. */
#ifndef FD_BENCH_MEASURE_H
#define FD_BENCH_MEASURE_H

#include <stdlib.h>
#include <time.h>

/* Seconds of a clock that only rises. */
static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of n ≥ 1 values, which it sorts; the mean of the middle two where n is even. */
static inline double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, rising);
    return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

#endif

/* How far a row of numbers is from another, for every test that says so. */
#ifndef FD_TESTS_NMSE_H
#define FD_TESTS_NMSE_H

#include <stdint.h>

/* Σ(x − truth)² / Σ truth²; NaN when anything is NaN. */
static inline double nmse(const float *x, const float *truth, int64_t n) {
    double error = 0, power = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)truth[i];
        error += d * d;
        power += (double)truth[i] * (double)truth[i];
    }
    return error / power;
}

#endif

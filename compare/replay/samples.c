#include "compare/replay/samples.h"

#include <math.h>

#include "base/clones.h"
#include "compare/bounds/bounds.h"

/* Four draws know a spread to a third. */
#define SAMPLED_SPREAD (4.0 / 3)

/* Which way a sample goes: +1 or -1 by node and element, the same in every run of the program. */
static inline double sign_of(int32_t node, int64_t i, int sample) {
    uint64_t h = ((uint64_t)(uint32_t)node << 40 ^ (uint64_t)i << 2 ^ (uint64_t)sample) + 1;
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
    h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
    return (h ^ h >> 33) & 1 ? 1 : -1;
}

FD_FOR_EACH_CPU
void fd_samples_move(float *restrict rows, const double *restrict tau, int64_t n, int32_t node, int64_t first,
                     int sample) {
    for (int64_t i = 0; i < n; i++) {
        float moved = rows[i] + (float)(sign_of(node, first + i, sample) * tau[i]);
        rows[i] = isfinite(rows[i]) && tau[i] < FD_BOUND_UNKNOWN ? moved : rows[i];
    }
}

FD_FOR_EACH_CPU
void fd_samples_move_f64(double *restrict rows, const double *restrict tau, int64_t n, int32_t node, int64_t first,
                         int sample) {
    for (int64_t i = 0; i < n; i++) {
        double moved = rows[i] + sign_of(node, first + i, sample) * tau[i];
        rows[i] = isfinite(rows[i]) && tau[i] < FD_BOUND_UNKNOWN ? moved : rows[i];
    }
}

/* Of the row's size. Engines leave 2^-23 of a sum and by a position's angle, kept in binary32, 2^-24 of it; with more, no row is without a value that
 * goes to the next step, and how many do hardly matters to what they leave. */
#define LAST_BITS          0x1p-18
#define LAST_BITS_OF_ANGLE 0x1p-22

void fd_samples_move_last_bits(double *row, int64_t n, int32_t node, int32_t pos, int32_t draw) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++) squares += isfinite(row[i]) ? row[i] * row[i] : 0;
    const double by = (LAST_BITS + LAST_BITS_OF_ANGLE * pos) * sqrt(squares / (double)n);
    for (int64_t i = 0; i < n; i++) row[i] += sign_of(node, pos * n + i, draw) * by;
}

FD_FOR_EACH_CPU
void fd_samples_add_squares(const double *restrict sample, const double *restrict rows, int64_t n,
                            double *restrict squares) {
    for (int64_t i = 0; i < n; i++) {
        double delta = sample[i] - rows[i], square = delta * delta;
        squares[i] += isfinite(delta) ? square : 0;
    }
}

FD_FOR_EACH_CPU
void fd_samples_add_squares_f32(const float *restrict sample, const float *restrict rows, int64_t n,
                                double *restrict squares) {
    for (int64_t i = 0; i < n; i++) {
        double delta = (double)sample[i] - (double)rows[i], square = delta * delta;
        squares[i] += isfinite(delta) ? square : 0;
    }
}

FD_FOR_EACH_CPU
void fd_samples_add_spread(const double *restrict squares, int64_t n, int64_t slice, int n_sample,
                           double *restrict tau) {
    for (int64_t at = 0; at < n; at += slice) {
        double sum = 0;
        int64_t moved = 0;
        for (int64_t i = at; i < at + slice; i++) {
            sum += squares[i];
            moved += squares[i] > 0;
        }
        double others = sum / (double)(moved ? moved : 1);
        for (int64_t i = at; i < at + slice; i++) tau[i] += SAMPLED_SPREAD * sqrt((squares[i] + others) / n_sample);
    }
}

#include "compare/replay/half_sums.h"

#include <math.h>
#include <string.h>

#include "model/gguf/float16.h"
#include "model/gguf/quant.h"

enum { WARP = 32, MOST_THREADS = 256, MOST_COLUMNS = 2 * MOST_THREADS };

/* To binary16 in one rounding: on the way through binary32 the last bit says that something was lost, so that no tie comes about. */
static float to_half(double x) {
    float near = (float)x;
    uint32_t bits;
    if ((double)near != x && isfinite(near)) {
        if (fabs((double)near) > fabs(x)) near = nextafterf(near, 0);
        memcpy(&bits, &near, sizeof bits);
        bits |= 1;
        memcpy(&near, &bits, sizeof near);
    }
    return f32_through_f16(near);
}

/* Of the fewest threads that take the fewest turns. */
static int64_t columns_a_turn(int64_t n_col) {
    int64_t best = 2 * WARP;
    for (int64_t columns = 4 * WARP; columns <= MOST_COLUMNS; columns += 2 * WARP)
        if ((n_col + columns - 1) / columns < (n_col + best - 1) / best) best = columns;
    return best;
}

void fd_half_sums(const fd_weight *weight, const double *x, double *y) {
    const int64_t n_col = weight->n_col, columns = columns_a_turn(n_col);
#pragma omp parallel for if (weight->n_row * n_col > 1 << 16)
    for (int64_t r = 0; r < weight->n_row; r++) {
        const uint16_t *row = (const uint16_t *)weight->data + r * n_col;
        double sum = 0;
        for (int64_t own = 0; own < columns && own < n_col; own++) {
            float part = 0;
            for (int64_t i = own; i < n_col; i += columns)
                part = to_half((double)fd_f16_to_f32(row[i]) * (double)f32_through_f16((float)x[i]) + (double)part);
            sum += (double)part;
        }
        y[r] = sum;
    }
}

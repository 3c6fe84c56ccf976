#include "compare/replay/half_sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/float16.h"
#include "model/weight_rows.h"

enum { WARP = 32, MOST_THREADS = 256, MOST_COLUMNS = 2 * MOST_THREADS, TILE = 16 };

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

double fd_half_pairs(const float *w, const float *x, int64_t n, int64_t n_padded) {
    const int64_t columns = columns_a_turn(n_padded);
    double sum = 0;
    for (int64_t own = 0; own < columns && own < n; own++) {
        float part = 0;
        for (int64_t i = own; i < n; i += columns) part = to_half((double)w[i] * (double)x[i] + (double)part);
        sum += (double)part;
    }
    return sum;
}

/* Tensor cores cut off what lies so far below the largest of a tile's products and the sum so far: of 150,000 sums of an H100 and an H200,
 * all that were on the other side of a middle were nearer to it than 2^-23.6 of that; of several hundred thousand more of an H200, one at
 * 2^-22.9. */
#define CUT_OFF 0x1p-22

static double ulp_of(double sum) {
    return ldexp(1, fabs(sum) > 0x1p-14 && isfinite(sum) ? ilogb(sum) - 10 : -24);
}

static bool may_go_either_way(double sum, double largest) {
    const double ulp = ulp_of(sum), at = fabs(sum) / ulp;
    return fabs(at - floor(at) - 0.5) * ulp <= CUT_OFF * largest;
}

/* From a sum on that may go either way, an ulp of each: the next ones may round otherwise because of it. */
static void add_room(double sum, double largest, double *room) {
    if (room && (*room > 0 || may_go_either_way(sum, largest))) *room += ulp_of(sum);
}

double fd_half_tiles(const float *w, const float *x, int64_t n, int64_t part, double *room) {
    float all = 0;
    if (part <= 0) part = n;
    for (int64_t first = 0; first < n; first += part) {
        const int64_t end = first + part < n ? first + part : n;
        float sum = 0;
        for (int64_t at = first; at < end; at += TILE) {
            double products = (double)sum, largest = fabs(products);
            for (int64_t i = at; i < at + TILE && i < end; i++) {
                const double product = (double)w[i] * (double)x[i];
                products += product;
                largest = fmax(largest, fabs(product));
            }
            add_room(products, largest, room);
            sum = to_half(products);
        }
        if (first > 0) add_room((double)all + (double)sum, -1, room); /* exact */
        all = first == 0 ? sum : to_half((double)all + (double)sum);
    }
    return (double)all;
}

fd_code fd_half_multiply(const fd_weight *weight, fd_half_order order, int64_t part, const double *x, double *y,
                         double *room, fd_error *err) {
    const int64_t n = weight->n_col;
    float *factors = malloc(sizeof *factors * (size_t)n);
    bool ran = factors != NULL;
    for (int64_t i = 0; ran && i < n; i++) factors[i] = f32_through_f16((float)x[i]);
#pragma omp parallel if (ran && weight->n_row * n > 1 << 16)
    {
        float *row = factors ? malloc(sizeof *row * (size_t)n) : NULL;
        if (!row) {
#pragma omp atomic write
            ran = false;
        }
#pragma omp for
        for (int64_t r = 0; r < weight->n_row; r++) {
            if (!row) continue;
            fd_weight_row(weight, r, row);
            if (room) room[r] = 0;
            y[r] = order == FD_HALF_PAIRS ? fd_half_pairs(row, factors, n, n)
                                          : fd_half_tiles(row, factors, n, part, room ? &room[r] : NULL);
        }
        free(row);
    }
    free(factors);
    return ran ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", weight->name);
}

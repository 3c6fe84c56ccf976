#include "compare/replay/half_sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clones.h"
#include "model/gguf/float16.h"
#include "model/weight_rows.h"
#include "numerics/contract.h"

enum { WARP = 32, MOST_THREADS = 256, MOST_COLUMNS = 2 * MOST_THREADS, TILE = 16 };

/* ---- a number, without branches: the loops over lanes become vectors ---- */

/* To binary16 in one rounding. 42 bits are too many; subnormal ones are multiples of 2^-24, which is an ulp of 2^28. */
static inline double to_half(double x) {
    const uint64_t bits = fd_bits64(x), magnitude = bits & ~(1ull << 63), below = (1ull << 42) - 1;
    const uint64_t rounded = (magnitude + (below >> 1) + (magnitude >> 42 & 1)) & ~below;
    const uint64_t infinite = fd_bits64(INFINITY), normal = rounded >= fd_bits64(65536.0) ? infinite : rounded;
    const uint64_t subnormal = fd_bits64(fd_from_bits64(magnitude) + 0x1p28 - 0x1p28);
    const uint64_t half = magnitude < fd_bits64(0x1p-14) ? subnormal : normal;
    return fd_from_bits64((bits & 1ull << 63) | (magnitude > infinite ? magnitude : half));
}

static inline double ulp_of(double sum) {
    const uint64_t magnitude = fd_bits64(sum) & ~(1ull << 63), exponent = magnitude >> 52;
    const bool normal = magnitude > fd_bits64(0x1p-14) && magnitude < fd_bits64(INFINITY);
    return fd_from_bits64(normal ? (exponent - 10) << 52 : fd_bits64(0x1p-24));
}

/* Tensor cores cut off what lies so far below the largest of a tile's products and the sum so far: of 150,000 sums of an H100 and an H200,
 * all that were on the other side of a middle were nearer to it than 2^-23.6 of that; of several hundred thousand more of an H200, one at
 * 2^-22.9. */
#define CUT_OFF 0x1p-22

/* From a sum on that may go either way, an ulp of each: the next ones may round otherwise because of it. */
static inline double added_room(double sum, double largest, double room) {
    const double ulp = ulp_of(sum), at = fabs(sum) / ulp;
    const bool either_way = fabs(at - floor(at) - 0.5) * ulp <= CUT_OFF * largest;
    return ((room > 0) | either_way) ? ulp : 0;
}

/* ---- sums ---- */

/* Of the fewest threads that take the fewest turns. */
static int64_t columns_a_turn(int64_t n_col) {
    int64_t best = 2 * WARP;
    for (int64_t columns = 4 * WARP; columns <= MOST_COLUMNS; columns += 2 * WARP)
        if ((n_col + columns - 1) / columns < (n_col + best - 1) / best) best = columns;
    return best;
}

FD_FOR_EACH_CPU
void fd_half_pairs(const float *w, const float *x, int64_t n, int64_t n_padded, double y[FD_HALF_LANES]) {
    const int64_t columns = columns_a_turn(n_padded);
    for (int r = 0; r < FD_HALF_LANES; r++) y[r] = 0;
    for (int64_t own = 0; own < columns && own < n; own++) {
        double part[FD_HALF_LANES] = {0};
        for (int64_t i = own; i < n; i += columns)
#pragma omp simd
            for (int r = 0; r < FD_HALF_LANES; r++)
                part[r] = to_half((double)w[i * FD_HALF_LANES + r] * (double)x[i] + part[r]);
        for (int r = 0; r < FD_HALF_LANES; r++) y[r] += part[r];
    }
}

/* Columns [at, end) to a sum of each lane. */
static inline void add_tile(const float *w, const float *x, int64_t at, int64_t end, double *sum, double *room) {
    double products[FD_HALF_LANES], largest[FD_HALF_LANES];
    for (int r = 0; r < FD_HALF_LANES; r++) products[r] = sum[r], largest[r] = fabs(sum[r]);
    for (int64_t i = at; i < end; i++)
#pragma omp simd
        for (int r = 0; r < FD_HALF_LANES; r++) {
            const double product = (double)w[i * FD_HALF_LANES + r] * (double)x[i], size = fabs(product);
            products[r] += product;
            largest[r] = size > largest[r] ? size : largest[r];
        }
#pragma omp simd
    for (int r = 0; r < FD_HALF_LANES; r++) {
        room[r] += added_room(products[r], largest[r], room[r]);
        sum[r] = to_half(products[r]);
    }
}

FD_FOR_EACH_CPU
void fd_half_tiles(const float *w, const float *x, int64_t n, int64_t part, double y[FD_HALF_LANES],
                   double room[FD_HALF_LANES]) {
    if (part <= 0) part = n;
    for (int r = 0; r < FD_HALF_LANES; r++) y[r] = room[r] = 0;
    for (int64_t first = 0; first < n; first += part) {
        const int64_t end = first + part < n ? first + part : n;
        double sum[FD_HALF_LANES] = {0};
        for (int64_t at = first; at < end; at += TILE) add_tile(w, x, at, at + TILE < end ? at + TILE : end, sum, room);
        for (int r = 0; r < FD_HALF_LANES; r++) {
            const double all = y[r] + sum[r];
            if (first > 0) room[r] += added_room(all, -1, room[r]); /* exact */
            y[r] = first > 0 ? to_half(all) : sum[r];
        }
    }
}

/* Rows [first, first + FD_HALF_LANES) beside each other; those past the last are 0. */
static void read_rows(const fd_weight *weight, int64_t first, float *row, float *lanes) {
    const int64_t n = weight->n_col;
    for (int r = 0; r < FD_HALF_LANES; r++) {
        if (first + r < weight->n_row)
            fd_weight_row(weight, first + r, row);
        else
            memset(row, 0, sizeof *row * (size_t)n);
        for (int64_t i = 0; i < n; i++) lanes[i * FD_HALF_LANES + r] = row[i];
    }
}

static int64_t lanes_left(int64_t first, int64_t n) {
    return n - first < FD_HALF_LANES ? n - first : FD_HALF_LANES;
}

fd_code fd_half_multiply(const fd_weight *weight, fd_half_order order, int64_t part, const double *x, double *y,
                         double *room, fd_error *err) {
    const int64_t n = weight->n_col;
    float *factors = malloc(sizeof *factors * (size_t)n);
    bool ran = factors != NULL;
    for (int64_t i = 0; ran && i < n; i++) factors[i] = f32_through_f16((float)x[i]);
#pragma omp parallel if (ran && weight->n_row * n > 1 << 19)
    {
        float *row = factors ? malloc(sizeof *row * (size_t)(n * (1 + FD_HALF_LANES))) : NULL;
        if (!row) {
#pragma omp atomic write
            ran = false;
        }
#pragma omp for
        for (int64_t first = 0; first < weight->n_row; first += FD_HALF_LANES) {
            double sums[FD_HALF_LANES], own_room[FD_HALF_LANES] = {0};
            if (!row) continue;
            read_rows(weight, first, row, row + n);
            if (order == FD_HALF_PAIRS)
                fd_half_pairs(row + n, factors, n, n, sums);
            else
                fd_half_tiles(row + n, factors, n, part, sums, own_room);
            const size_t bytes = sizeof *y * (size_t)lanes_left(first, weight->n_row);
            memcpy(y + first, sums, bytes);
            if (room) memcpy(room + first, own_room, bytes);
        }
        free(row);
    }
    free(factors);
    return ran ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", weight->name);
}

/* One row of an observation without its padding: fingerprint, statistics, copy. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/clones.h"
#include "dumpers/store/trace.h"

/* The row as runs of contiguous elements: one run, or one per head when the row is padded along n_kv. */
typedef struct row_runs {
    const char *first;
    int64_t n_run, run_elements, run_stride; /* elements */
    size_t element_bytes;
} row_runs;

static row_runs runs_of(const fd_observation *o, int32_t row) {
    assert(row >= 0 && row < o->n_pos && (o->dtype == FD_F32 || o->dtype == FD_F64));
    size_t bytes = o->dtype == FD_F64 ? sizeof(double) : sizeof(float);
    int32_t n_kv = o->pos0 + row + 1;
    row_runs runs = {(const char *)o->data + (size_t)row * (size_t)o->row_stride * bytes, 1,
                     fd_node_elements(o->node, n_kv), 0, bytes};
    if (o->node->over_kv && n_kv < o->pos0 + o->n_pos) {
        runs.n_run = o->node->shape[0];
        runs.run_elements = n_kv;
        runs.run_stride = o->pos0 + o->n_pos;
    }
    return runs;
}

static const void *run_at(const row_runs *runs, int64_t i) {
    return runs->first + (size_t)(i * runs->run_stride) * runs->element_bytes;
}

static uint64_t canonical(uint64_t bits) {
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
}

/* fd_fingerprint_f32, the words of a contiguous tensor without a branch between them. */
FD_FOR_EACH_CPU
static fd_fingerprint fingerprint_f32(const float *x, int64_t n) {
    uint64_t lo = 0, hi = 0;
    for (int64_t i = 0; i < n / 2; i++) {
        uint64_t word;
        memcpy(&word, x + 2 * i, sizeof word);
        word = canonical(word & 0xffffffffu) | canonical(word >> 32) << 32;
        uint64_t term = fd_mix64(word + ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u);
        lo += term;
        hi += fd_mix64(term + word);
    }
    fd_fingerprint f = {lo, hi};
    if (n % 2) fd_fingerprint_add(&f, (uint64_t)n / 2, fd_canonical32(x[n - 1]));
    return fd_fingerprint_end(f, (uint64_t)n);
}

/* Words pair neighbouring elements of the unpadded row, so a pair may straddle two runs. */
static fd_fingerprint fingerprint_runs_f32(const row_runs *runs) {
    fd_fingerprint f = {0, 0};
    uint64_t at = 0, low = 0;
    for (int64_t r = 0; r < runs->n_run; r++) {
        const float *x = run_at(runs, r);
        for (int64_t i = 0; i < runs->run_elements; i++, at++) {
            uint64_t bits = fd_canonical32(x[i]);
            if (at % 2 == 0)
                low = bits;
            else
                fd_fingerprint_add(&f, at / 2, low | bits << 32);
        }
    }
    if (at % 2) fd_fingerprint_add(&f, at / 2, low);
    return fd_fingerprint_end(f, at);
}

static fd_fingerprint fingerprint_runs_f64(const row_runs *runs) {
    fd_fingerprint f = {0, 0};
    uint64_t at = 0;
    for (int64_t r = 0; r < runs->n_run; r++) {
        const double *x = run_at(runs, r);
        for (int64_t i = 0; i < runs->run_elements; i++) fd_fingerprint_add(&f, at++, fd_canonical64(x[i]));
    }
    return fd_fingerprint_end(f, at);
}

fd_fingerprint fd_observation_fingerprint(const fd_observation *observation, int32_t row) {
    if (observation->fingerprints) return observation->fingerprints[row];
    row_runs runs = runs_of(observation, row);
    if (runs.n_run == 1)
        return observation->dtype == FD_F64 ? fd_fingerprint_f64(run_at(&runs, 0), runs.run_elements)
                                            : fingerprint_f32(run_at(&runs, 0), runs.run_elements);
    return observation->dtype == FD_F64 ? fingerprint_runs_f64(&runs) : fingerprint_runs_f32(&runs);
}

/* A row of binary32 so far: minima and maxima side by side, as the partial sums are. */
typedef struct row_tally {
    fd_tally tally; /* but for min and max */
    fd_sum64 sum, squares;
    double low[FD_PARTIALS], high[FD_PARTIALS];
} row_tally;

/* fd_tally_add and fd_sum64_add for the row's next n elements. */
FD_FOR_EACH_CPU
static void tally_f32(const float *x, int64_t n, row_tally *t) {
    int64_t n_nan = 0, n_pos_inf = 0, n_neg_inf = 0, n_zero = 0;
    for (int64_t i = 0, m; i < n; i += m) {
        int64_t at = t->sum.n % FD_PARTIALS; /* the partial sum that takes the next element */
        double *restrict sum = t->sum.partial + at, *restrict squares = t->squares.partial + at;
        double *restrict low = t->low + at, *restrict high = t->high + at;
        m = n - i < FD_PARTIALS - at ? n - i : FD_PARTIALS - at;
        for (int64_t j = 0; j < m; j++) {
            double v = (double)x[i + j], term = fabs(v) < INFINITY ? v : 0.0;
            double below = fabs(v) < INFINITY ? v : INFINITY, above = fabs(v) < INFINITY ? v : -INFINITY;
            sum[j] = sum[j] + term;
            squares[j] = squares[j] + term * term;
            low[j] = below < low[j] ? below : low[j];
            high[j] = above > high[j] ? above : high[j];
        }
        t->sum.n += m;
        t->squares.n += m;
        if (t->sum.n % FD_SUM_BLOCK != 0) continue;
        fd_sum64_close_block(&t->sum);
        fd_sum64_close_block(&t->squares);
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = fd_bits32(x[i]);
        n_nan += (bits & 0x7fffffffu) > 0x7f800000u;
        n_pos_inf += bits == 0x7f800000u;
        n_neg_inf += bits == 0xff800000u;
        n_zero += (bits & 0x7fffffffu) == 0;
    }
    t->tally.n_nan += n_nan;
    t->tally.n_pos_inf += n_pos_inf;
    t->tally.n_neg_inf += n_neg_inf;
    t->tally.n_zero += n_zero;
    t->tally.n_finite += n - n_nan - n_pos_inf - n_neg_inf;
}

static fd_stats stats_f32(const row_runs *runs) {
    row_tally t = {.tally = fd_tally_none()};
    for (int j = 0; j < FD_PARTIALS; j++) t.low[j] = INFINITY, t.high[j] = -INFINITY;
    for (int64_t r = 0; r < runs->n_run; r++) tally_f32(run_at(runs, r), runs->run_elements, &t);
    for (int j = 0; j < FD_PARTIALS; j++) {
        t.tally.min = t.low[j] < t.tally.min ? t.low[j] : t.tally.min;
        t.tally.max = t.high[j] > t.tally.max ? t.high[j] : t.tally.max;
    }
    return fd_tally_end(&t.tally, fd_sum64_end(&t.sum), fd_sum64_end(&t.squares));
}

static fd_stats stats_f64(const row_runs *runs) {
    fd_tally tally = fd_tally_none();
    fd_sum64 sum = {0}, squares = {0};
    for (int64_t r = 0; r < runs->n_run; r++) {
        const double *x = run_at(runs, r);
        for (int64_t i = 0; i < runs->run_elements; i++) {
            double term = fd_tally_add(&tally, x[i]);
            fd_sum64_add(&sum, term);
            fd_sum64_add(&squares, term * term);
        }
    }
    return fd_tally_end(&tally, fd_sum64_end(&sum), fd_sum64_end(&squares));
}

void fd_observation_stats(const fd_observation *observation, int32_t row, fd_stats *out) {
    if (observation->stats) {
        *out = observation->stats[row];
        return;
    }
    row_runs runs = runs_of(observation, row);
    *out = observation->dtype == FD_F64 ? stats_f64(&runs) : stats_f32(&runs);
}

void fd_observation_copy(const fd_observation *observation, int32_t row, void *out) {
    row_runs runs = runs_of(observation, row);
    size_t bytes = (size_t)runs.run_elements * runs.element_bytes;
    for (int64_t r = 0; r < runs.n_run; r++) memcpy((char *)out + (size_t)r * bytes, run_at(&runs, r), bytes);
}

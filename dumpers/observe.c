/* One row of an observation without its padding: fingerprint, statistics, copy. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "dumpers/trace.h"

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

/* Every compiler's best for each kind of processor: multiplications of 64 bits take AVX-512 to be many at once. Integers
 * alone, so the bits are the same. Sanitized builds keep one version: the loader chooses before they are ready. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&              \
    !defined(__SANITIZE_THREAD__) && defined(__OPTIMIZE__)
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_CPU
#endif

static uint64_t canonical(uint64_t bits) {
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
}

/* fd_fingerprint_f32, the words of a contiguous tensor without a branch between them. */
FOR_EACH_CPU
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
    row_runs runs = runs_of(observation, row);
    if (runs.n_run == 1)
        return observation->dtype == FD_F64 ? fd_fingerprint_f64(run_at(&runs, 0), runs.run_elements)
                                            : fingerprint_f32(run_at(&runs, 0), runs.run_elements);
    return observation->dtype == FD_F64 ? fingerprint_runs_f64(&runs) : fingerprint_runs_f32(&runs);
}

typedef struct tally {
    double min, max, sum, squares;
    int64_t n_finite, n_nan, n_pos_inf, n_neg_inf, n_zero;
} tally;

static void count(tally *t, double x) {
    if (isfinite(x)) {
        t->min = x < t->min ? x : t->min;
        t->max = x > t->max ? x : t->max;
        t->sum += x;
        t->squares += x * x;
        t->n_finite++;
        t->n_zero += x == 0.0;
    } else if (isnan(x)) {
        t->n_nan++;
    } else if (x > 0.0) {
        t->n_pos_inf++;
    } else {
        t->n_neg_inf++;
    }
}

void fd_observation_stats(const fd_observation *observation, int32_t row, fd_trace_stats *out) {
    row_runs runs = runs_of(observation, row);
    tally t = {INFINITY, -INFINITY, 0, 0, 0, 0, 0, 0, 0};
    for (int64_t r = 0; r < runs.n_run; r++) {
        const void *data = run_at(&runs, r);
        if (observation->dtype == FD_F64)
            for (int64_t i = 0; i < runs.run_elements; i++) count(&t, ((const double *)data)[i]);
        else
            for (int64_t i = 0; i < runs.run_elements; i++) count(&t, (double)((const float *)data)[i]);
    }
    bool any = t.n_finite > 0;
    double n = (double)t.n_finite;
    out->min = any ? t.min : NAN;
    out->max = any ? t.max : NAN;
    out->mean = any ? t.sum / n : NAN;
    out->rms = any ? sqrt(t.squares / n) : NAN;
    out->absmax = any ? fmax(fabs(t.min), fabs(t.max)) : NAN;
    out->n_nan = (double)t.n_nan;
    out->n_pos_inf = (double)t.n_pos_inf;
    out->n_neg_inf = (double)t.n_neg_inf;
    out->n_zero = (double)t.n_zero;
}

void fd_observation_copy(const fd_observation *observation, int32_t row, void *out) {
    row_runs runs = runs_of(observation, row);
    size_t bytes = (size_t)runs.run_elements * runs.element_bytes;
    for (int64_t r = 0; r < runs.n_run; r++) memcpy((char *)out + (size_t)r * bytes, run_at(&runs, r), bytes);
}

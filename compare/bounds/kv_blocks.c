/* Rows of a cache that is kept in blocks of 32: replay repeats the rounding, so they are off only where it may go the
 * other way. */
#include "base/levels.h"
#include "compare/bounds/dot_inputs.h"
#include "compare/bounds/internal.h"

/* Of a block of 32: the value that its integers count from, their step, what both are off by, in units of x; the binary16
 * that a block keeps of each, and how far it may move, where it is that near to the middle between two. */
typedef struct block_steps {
    double from, step, error, kept_from, kept_step, from_flip, step_flip;
} block_steps;

static double f16_flip(double value, double error) {
    int exponent = 0;
    (void)frexp(value, &exponent);
    double ulp = fmax(ldexp(1, exponent - 11), 0x1p-24), ulps = fabs(value) / ulp;
    return fabs(ulps - floor(ulps) - 0.5) <= (error + 4 * 0x1p-24 * fabs(value)) / ulp ? ulp : 0;
}

static block_steps steps_of(const double *x, const double *e, uint32_t type) {
    enum { BLOCK = 32 };
    double most = 0, least = x[0], largest = x[0], error = 0;
    for (int i = 0; i < BLOCK; i++) {
        most = fmax(most, fabs(x[i]));
        least = fmin(least, x[i]);
        largest = fmax(largest, x[i]);
        error = fmax(error, e[i]);
    }
    bool from_min = fd_bound_has_sums(type);
    double n_step = type == FD_Q8_0 ? 127 : type == FD_Q4_0 ? 8 : type == FD_Q4_1 ? 15 : type == FD_Q5_0 ? 16 : 31;
    block_steps b = {.from = from_min ? least : 0, .error = from_min ? 2 * error : error};
    b.step = (from_min ? largest - least : most) / n_step;
    b.step_flip = f16_flip(b.step, b.error / n_step);
    b.from_flip = from_min ? f16_flip(least, error) : 0;
    b.kept_step = (double)fd_dot_round_f16((float)b.step);
    b.kept_from = from_min ? (double)fd_dot_round_f16((float)least) : 0;
    return b;
}

/* ggml counts the steps before it rounds them to binary16; others divide by what the block keeps. */
static bool may_flip(const block_steps *b, double x, double error) {
    double steps = fabs(x - b->from) / b->step, kept = b->kept_step > 0 ? fabs(x - b->kept_from) / b->kept_step : steps;
    double margin = (error + b->error) / b->step + 4 * 0x1p-24 * (steps + 8 + fabs(b->from) / b->step);
    double kept_margin = margin + (b->step_flip * steps + b->from_flip) / b->step;
    double low = fmin(steps - margin, kept - kept_margin), high = fmax(steps + margin, kept + kept_margin);
    return !(floor(low + 0.5) >= floor(high + 0.5));
}

/* IQ4_NL: levels by the one of largest magnitude, which is the lowest; what is kept is the factor that is best for them. */
static void add_level_flips(const double *x, const double *e, double *to) {
    static const int8_t levels[16] = {FD_IQ4_LEVELS};
    enum { BLOCK = 32 };
    double extreme = 0, error = 0, with_x = 0, with_level = 0;
    double gap[BLOCK] = {0}, level[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        if (fabs(x[i]) > fabs(extreme)) extreme = x[i];
        error = fmax(error, e[i]);
    }
    if (!(fabs(extreme) > 0)) return;
    for (int i = 0; i < BLOCK; i++) {
        const double at = x[i] / extreme * levels[0];
        const double margin = (e[i] + error) / fabs(extreme) * 127 + 8 * 0x1p-24 * 128;
        int k = 0;
        while (k < 15 && !(at - levels[k] < levels[k + 1] - at)) k++;
        level[i] = levels[k];
        for (int side = k > 0 ? -1 : 0; side <= (k < 15 ? 0 : -1); side++)
            if (fabs(at - 0.5 * (levels[k + side] + levels[k + side + 1])) <= margin)
                gap[i] = fmax(gap[i], levels[k + side + 1] - levels[k + side]);
        with_x += x[i] * x[i] * level[i] * x[i];
        with_level += x[i] * x[i] * level[i] * level[i];
    }
    const double d = with_x / with_level;
    double moved = 0; /* d by the levels that may be others, and to its neighbour in binary16 */
    for (int i = 0; i < BLOCK; i++)
        moved += gap[i] > 0 ? x[i] * x[i] * gap[i] * (fabs(x[i]) + 2 * fabs(d * level[i])) : 0;
    moved = moved / with_level + f16_flip(d, error / 127 + 8 * 0x1p-24 * fabs(d));
    if (moved > 0) moved += 0x1p-10 * fabs(d); /* then it may be another number in binary16 */
    for (int i = 0; i < BLOCK; i++) to[i] += 1.5 * gap[i] * fabs(d) + moved * fabs(level[i]);
}

void fd_bound_kv_flips(const double *x, const double *e, int64_t n, uint32_t type, double *to) {
    enum { BLOCK = 32 };
    for (int64_t at = 0; at + BLOCK <= n && type == FD_IQ4_NL; at += BLOCK) add_level_flips(x + at, e + at, to + at);
    if (type == FD_IQ4_NL) return;
    for (int64_t at = 0; at + BLOCK <= n; at += BLOCK) {
        const block_steps b = steps_of(x + at, e + at, type);
        for (int64_t i = at; i < at + BLOCK && b.step > 0; i++) {
            double steps = fabs(x[i] - b.from) / b.step;
            to[i] += (may_flip(&b, x[i], e[i]) ? 2 * b.step : 0) + b.step_flip * (steps + 1) + b.from_flip;
        }
    }
}

void fd_bound_bf16_flips(const double *x, const double *e, int64_t n, double *to) {
    for (int64_t i = 0; i < n; i++) {
        if (!(isfinite(x[i]) && x[i] != 0)) continue;
        const double step = ldexp(1, ilogb(x[i]) - 7), steps = fabs(x[i]) / step;
        if (fabs(steps - floor(steps) - 0.5) * step <= e[i] + 4 * 0x1p-24 * fabs(x[i])) to[i] += step;
    }
}

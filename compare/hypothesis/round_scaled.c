#include "compare/hypothesis/round_scaled.h"

#include <math.h>
#include <stddef.h>

#include "compare/hypothesis/round_type.h"

/* OCP 8-bit Floating Point Specification; integers have digits 0. */
typedef struct scaled_type {
    int32_t type;
    int digits, least_exponent;
    float largest;     /* what the largest value becomes */
    float least, most; /* what is beyond is cut to these */
} scaled_type;

static const scaled_type types[] = {
    {FD_ROUND_E4M3, 4, -6, 448, -448, 448}, {FD_ROUND_E5M2, 3, -14, 57344, -57344, 57344},
    {FD_ROUND_INT8, 0, 0, 127, -128, 127},  {FD_ROUND_INT8_128, 0, 0, 128, -128, 127},
    {FD_ROUND_INT4, 0, 0, 7, -8, 7},        {FD_ROUND_UINT8, 0, 0, 255, 0, 255},
};

static const scaled_type *find(int32_t type) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type) return &types[i];
    return NULL;
}

bool fd_is_scaled_type(int32_t type) {
    return find(type) != NULL;
}

const char *fd_scale_name(fd_scale_of scale) {
    static const char *const names[] = {
        "",
        " with one scale a head",
        " with one scale a row",
        " with one scale a step",
        " with one scale for all rows",
        " with one scale for each head, the same in all rows",
        " with one scale for each element of a row, the same in all rows",
    };
    return names[scale];
}

/* How far apart the type's numbers are there. */
static double step_at(const scaled_type *t, double x) {
    int exponent;
    if (t->digits == 0) return 1;
    (void)frexp(x, &exponent);
    if (exponent - 1 < t->least_exponent || !(fabs(x) > 0)) exponent = t->least_exponent + 1;
    return ldexp(1, exponent - t->digits);
}

/* To the nearest number of the type, ties to even. */
static double nearest(const scaled_type *t, double x) {
    const double step = step_at(t, x), rounded = rint(x / step) * step;
    return fmin(fmax(rounded, (double)t->least), (double)t->most);
}

/* ---- what shares a scale ---- */

/* Element i: first + i / chunk * stride + i % chunk. */
typedef struct shared {
    int64_t first, n, chunk, stride;
} shared;

static int64_t at(const shared *g, int64_t i) {
    return g->first + i / g->chunk * g->stride + i % g->chunk;
}

static int64_t n_shared(const fd_scaled *s) {
    switch (s->scale) {
    case FD_SCALE_HEAD: return s->n_row * s->n_head;
    case FD_SCALE_ROW: return s->n_row;
    case FD_SCALE_HEAD_FITTED: return s->n_head;
    case FD_SCALE_ELEMENT_FITTED: return s->width;
    case FD_SCALE_NONE:
    case FD_SCALE_STEP:
    case FD_SCALE_FITTED: break;
    }
    return 1;
}

static shared shared_at(const fd_scaled *s, int64_t i) {
    const int64_t all = s->n_row * s->width, head = s->width / s->n_head, earlier = s->n_earlier * s->width;
    switch (s->scale) {
    case FD_SCALE_HEAD: return (shared){i * head, head, head, head};
    case FD_SCALE_ROW: return (shared){i * s->width, s->width, s->width, s->width};
    case FD_SCALE_STEP: return (shared){earlier, all - earlier, s->width, s->width};
    case FD_SCALE_HEAD_FITTED: return (shared){i * head, s->n_row * head, head, s->width};
    case FD_SCALE_ELEMENT_FITTED: return (shared){i, s->n_row, 1, s->width};
    case FD_SCALE_NONE:
    case FD_SCALE_FITTED: break;
    }
    return (shared){0, all, s->width, s->width};
}

/* ---- scales ---- */

/* Fewer elements have a scale by chance. */
enum { FEWEST_TO_FIT = 8 };
/* Of a step, how far recorded numbers may be from whole ones. */
#define OFF_THE_GRID 0.01

/* Numbers that stand on whole steps, least squares. 0: they do not. */
static double whole_steps(const scaled_type *t, const float *c, const shared *g, double step) {
    double ck = 0, kk = 0;
    for (int64_t i = 0; i < g->n; i++) {
        const double x = (double)c[at(g, i)], k = nearest(t, x / step);
        if (!(fabs(x / step - k) <= OFF_THE_GRID * step_at(t, k))) return 0;
        ck += x * k;
        kk += k * k;
    }
    return kk > 0 ? ck / kk : 0;
}

/* The smallest number that is not zero is a few steps; of few numbers it may be any. */
enum { MOST_STEPS = 127 };

static double fit_integers(const scaled_type *t, const float *c, const shared *g) {
    double least = INFINITY, scale = 0;
    for (int64_t i = 0; i < g->n; i++)
        if (fabsf(c[at(g, i)]) > 0) least = fmin(least, fabs((double)c[at(g, i)]));
    for (int k = 1; k <= MOST_STEPS && isfinite(least) && !(scale > 0); k++) scale = whole_steps(t, c, g, least / k);
    return scale;
}

static double distance(const scaled_type *t, const float *c, const float *rows, const shared *g, double scale) {
    double squares = 0;
    for (int64_t i = 0; i < g->n; i++) {
        const double y = nearest(t, (double)rows[at(g, i)] / scale) * scale - (double)c[at(g, i)];
        squares += y * y;
    }
    return squares;
}

/* The largest number is one of the mantissas; the exponent shows in the smallest ones, and where large ones are cut. */
static double fit_floats(const scaled_type *t, const float *c, const float *rows, const shared *g) {
    const int least = 1 << (t->digits - 1), end = 2 * least;
    int exponent;
    double largest = 0, best = 0, least_distance = INFINITY;
    for (int64_t i = 0; i < g->n; i++) largest = fmax(largest, fabs((double)c[at(g, i)]));
    if (!(largest > 0) || !isfinite(largest)) return 0;
    (void)frexp((double)t->largest, &exponent);
    for (int mantissa = least; mantissa < end; mantissa++)
        for (int e = exponent - t->digits; e > t->least_exponent - t->digits; e--) {
            const double number = ldexp(mantissa, e);
            if (number > (double)t->largest) continue;
            const double scale = whole_steps(t, c, g, largest / number);
            const double d = scale > 0 ? distance(t, c, rows, g, scale) : INFINITY;
            if (d < least_distance) least_distance = d, best = scale;
        }
    return best;
}

/* Numbers are x / scale + zero. A scale of 0: there is none. */
typedef struct grid {
    double scale, zero;
} grid;

/* As a kernel computes them, in binary32. */
static grid grid_between(const scaled_type *t, const float *rows, const shared *g) {
    float least = INFINITY, most = -INFINITY;
    for (int64_t i = 0; i < g->n; i++) {
        const float x = rows[at(g, i)];
        if (!isfinite(x)) return (grid){0};
        least = fminf(least, x);
        most = fmaxf(most, x);
    }
    const float scale = (most - least) / t->largest;
    return scale > 0 ? (grid){(double)scale, (double)(-least / scale)} : (grid){0};
}

static grid grid_of(const fd_scaled *s, const scaled_type *t, const float *rows, const shared *g) {
    if (s->scale == FD_SCALE_NONE) return (grid){.scale = 1};
    if (s->scale >= FD_SCALE_FITTED) {
        if (!s->candidate || g->n < FEWEST_TO_FIT) return (grid){0};
        return (grid){.scale = t->digits ? fit_floats(t, s->candidate, rows, g) : fit_integers(t, s->candidate, g)};
    }
    if (!(t->least < 0)) return grid_between(t, rows, g);
    float largest = 0;
    for (int64_t i = 0; i < g->n; i++) largest = !(fabsf(rows[at(g, i)]) <= largest) ? fabsf(rows[at(g, i)]) : largest;
    return (grid){.scale = isfinite(largest) ? (double)(largest / t->largest) : 0};
}

void fd_round_scaled(const fd_scaled *s, float *rows) {
    const scaled_type *t = find(s->type);
    for (int64_t k = 0; k < n_shared(s); k++) {
        const shared g = shared_at(s, k);
        const grid of = grid_of(s, t, rows, &g);
        const float scale = (float)of.scale, zero = (float)of.zero;
        for (int64_t i = 0; i < g.n && scale > 0; i++) {
            float *x = &rows[at(&g, i)];
            if (isfinite(*x)) *x = ((float)nearest(t, (double)(*x / scale + zero)) - zero) * scale;
        }
    }
}

/* The scale is a quotient, and what is kept is a quotient times it; a fitted one is as near as the numbers that it was fitted to. */
#define OF_SCALE        0x1p-22
#define OF_FITTED_SCALE 0x1p-20

void fd_round_scaled_bounds(const fd_scaled *s, const float *rows, double *tau) {
    const scaled_type *t = find(s->type);
    const bool fitted = s->scale >= FD_SCALE_FITTED, given = s->scale == FD_SCALE_NONE;
    for (int64_t k = 0; k < n_shared(s); k++) {
        const shared g = shared_at(s, k);
        const grid of = grid_of(s, t, rows, &g);
        const double scale = of.scale;
        double most = 0, relative = given ? 0 : fitted ? OF_FITTED_SCALE : OF_SCALE;
        for (int64_t i = 0; i < g.n; i++) most = fmax(most, tau[at(&g, i)]);
        if (!fitted && !given && scale > 0) relative += most / (scale * (double)t->largest);
        for (int64_t i = 0; i < g.n && scale > 0; i++) {
            const double x = (double)rows[at(&g, i)] / scale + of.zero,
                         off = tau[at(&g, i)] / scale + fabs(x) * relative;
            const double low = nearest(t, x - off), high = nearest(t, x + off);
            tau[at(&g, i)] = (high - low + fmax(fabs(low), fabs(high)) * relative) * scale;
        }
    }
}

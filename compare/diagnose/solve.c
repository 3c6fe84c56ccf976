#include "compare/diagnose/solve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* From a millionth of the right number to a million times it, in steps of 10^(1/4). */
enum { COARSE = 24, PER_DECADE = 4, FINE = 44 };

static fd_code distance_at(fd_trial *t, fd_hypothesis *h, double value, double *distance, fd_error *err) {
    h->value = value;
    return fd_trial_distance(t, h, distance, err);
}

/* Golden section between log10 values. */
static fd_code refine(fd_trial *t, fd_hypothesis *h, double low, double high, double *best, fd_error *err) {
    const double section = 0.6180339887498949;
    double a = high - section * (high - low), b = low + section * (high - low), at_a, at_b;
    FD_TRY(distance_at(t, h, pow(10, a), &at_a, err));
    FD_TRY(distance_at(t, h, pow(10, b), &at_b, err));
    for (int i = 0; i < FINE; i++) {
        if (at_a <= at_b) {
            high = b, b = a, at_b = at_a;
            a = high - section * (high - low);
            FD_TRY(distance_at(t, h, pow(10, a), &at_a, err));
        } else {
            low = a, a = b, at_a = at_b;
            b = low + section * (high - low);
            FD_TRY(distance_at(t, h, pow(10, b), &at_b, err));
        }
    }
    *best = pow(10, at_a <= at_b ? a : b);
    return FD_OK;
}

/* x with so many significant digits. */
static double with_digits(double x, int digits) {
    char text[40];
    snprintf(text, sizeof text, "%.*e", digits - 1, x);
    return strtod(text, NULL);
}

/* What the number may be, simple ones first: few digits, a simple multiple of the right one, one over the root of a
 * whole number; at last itself. */
static int candidates(double x, double right, double to[16]) {
    static const double multiples[] = {2, 0.5, 4, 0.25, 8, 0.125};
    int n = 0;
    for (int digits = 1; digits <= 3; digits++) to[n++] = with_digits(x, digits);
    for (int i = 0; i < 6 && right > 0; i++) to[n++] = multiples[i] * right;
    if (right > 0) to[n++] = right * right;
    double whole = round(1 / (x * x));
    if (whole >= 1 && whole < 1e6) to[n++] = 1 / sqrt(whole);
    to[n++] = with_digits(x, 4);
    to[n++] = with_digits(x, 6);
    to[n++] = x;
    return n;
}

fd_code fd_solve(fd_trial *t, fd_hypothesis h, double right, bool *found, fd_error *err) {
    double centre = right > 0 ? log10(right) : 0, least = INFINITY, plain = t->few_left, best;
    int at = 0;
    *found = false;
    if (fd_trial_exhausted(t)) return FD_OK;
    for (int k = -COARSE; k <= COARSE; k++) {
        double distance;
        FD_TRY(distance_at(t, &h, pow(10, centre + (double)k / PER_DECADE), &distance, err));
        if (k == 0 && !(distance < plain)) distance = plain; /* the right number itself, and the other may be near it */
        if (distance < least) least = distance, at = k;
    }
    if (!(least <= plain) || fd_trial_exhausted(t)) return FD_OK;
    FD_TRY(refine(t, &h, centre + (double)(at - 1) / PER_DECADE, centre + (double)(at + 1) / PER_DECADE, &best, err));
    FD_TRY(distance_at(t, &h, best, &least, err));
    if (!(least < plain / 4)) return FD_OK;
    double simple[16];
    int n = candidates(best, right, simple);
    for (int i = 0; i < n && !*found; i++) {
        double distance;
        if (!(fabs(simple[i] - best) <= 0.05 * best)) continue;
        FD_TRY(distance_at(t, &h, simple[i], &distance, err));
        if (!(distance <= 1.5 * least + 1)) continue;
        FD_TRY(fd_trial_try(t, &h, err));
        *found = fd_trial_fits(t);
    }
    return FD_OK;
}

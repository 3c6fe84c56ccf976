#include "compare/explain/simple_numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

double fd_with_digits(double x, int digits) {
    char text[40];
    snprintf(text, sizeof text, "%.*e", digits - 1, x);
    return strtod(text, NULL);
}

#define NEAR_ROOT 0.02
enum { MOST_DIGITS = 3 };

/* A digit, 0.7, stands beside one over a root, 0.7071: engines have that of 3 and of 2, 8, 32 … 2048, if it is nearer. 0: it is not. */
static double nearer_root(double x) {
    static const double under[] = {2, 3, 8, 32, 128, 512, 2048};
    for (size_t i = 0; i < sizeof under / sizeof *under; i++) {
        const double root = 1 / sqrt(under[i]);
        if (fabs(root - x) <= NEAR_ROOT * root && fabs(root - x) < fabs(fd_with_digits(x, 1) - x)) return root;
    }
    return 0;
}

int fd_solve_simple(double x, double to[FD_MOST_SIMPLE]) {
    const double power = pow(10, round(log10(fabs(x))));
    const double root = x > 0 ? nearer_root(x) : 0;
    int n = 0;
    if (root > 0) to[n++] = root;
    if (fabs(fabs(x) / power - 1) <= FD_NEAR_ROUND) to[n++] = copysign(power, x);
    for (int digits = 1; digits <= MOST_DIGITS; digits++) to[n++] = fd_with_digits(x, digits);
    to[n++] = x;
    return n;
}

int fd_simple_numbers(double x, double right, double to[FD_MOST_SIMPLE_NUMBERS], int *n_round) {
    static const double multiples[] = {2, 0.5, 4, 0.25, 8, 0.125};
    int n = 0;
    const double root = nearer_root(x);
    if (root > 0) to[n++] = root;
    to[n++] = fd_with_digits(x, 1);
    to[n++] = exp2(round(log2(x)));
    for (int i = 0; i < 6 && right > 0; i++) to[n++] = multiples[i] * right;
    *n_round = n;
    if (right > 0) to[n++] = right * right;
    to[n++] = fd_with_digits(x, 2);
    to[n++] = fd_with_digits(x, 3);
    double whole = round(1 / (x * x));
    if (whole >= 1 && whole < 1e6) to[n++] = 1 / sqrt(whole);
    to[n++] = fd_with_digits(x, 4);
    to[n++] = fd_with_digits(x, 6);
    to[n++] = x;
    return n;
}

/* The contract's binary64 functions against x87 / quad long double libm, sampled: relative (exp, log, pow) or absolute
 * (sin, cos) error, with the bounds stated. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "numerics/contract.h"

#define U 0x1p-53

static uint64_t state = 42;
static double uniform(double low, double high) { /* splitmix64 */
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return low + (high - low) * ((double)((z ^ (z >> 31)) >> 11) * 0x1p-53);
}

typedef struct function_case {
    const char *name;
    double low, high; /* of the argument */
    long double (*error)(double x);
    double bound;
} function_case;

static long double relative(double y, long double r) {
    return r == 0 ? fabsl(y) : fabsl(y - r) / fabsl(r);
}
static long double exp_error(double x) {
    return relative(fd_exp64(x), expl(x));
}
static long double log_error(double x) {
    return relative(fd_log64(x), logl(x));
}
static long double pow_1e6_error(double x) {
    return relative(fd_pow64(1e6, x), powl(1e6L, x));
}
static long double pow_1e4_error(double x) {
    return relative(fd_pow64(1e4, x), powl(1e4L, x));
}

static long double sin_error(double x) {
    double s, c;
    fd_sincos64(x, &s, &c);
    return fabsl(s - sinl(x));
}

static long double cos_error(double x) {
    double s, c;
    fd_sincos64(x, &s, &c);
    return fabsl(c - cosl(x));
}

static long double sin_mutant_error(double x) { /* π/2 in one part only: what a careless reduction gives */
    double k = rint(x * 0.63661977236758134308), s, c;
    fd_sincos64(x - k * 1.5707963267948966, &s, &c);
    int64_t q = (int64_t)k & 3;
    return fabsl((q == 0 ? s : q == 1 ? c : q == 2 ? -s : -c) - sinl(x));
}

static long double worst(const function_case *f) {
    long double w = 0;
    for (int i = 0; i < 400000; i++) {
        long double e = f->error(uniform(f->low, f->high));
        if (!(e <= w)) w = e;
    }
    return w;
}

/* pow's error grows with |y·ln base| ≤ 13.8: 13.8 roundings of the exponent's last place. */
static const function_case cases[] = {
    {"exp64 near 0", -1, 1, exp_error, 2 * U},
    {"exp64 wide", -690, 690, exp_error, 3 * U},
    {"log64 near 1", 0.5, 2, log_error, 4 * U},
    {"log64 wide", 1e-300, 1e300, log_error, 3 * U},
    {"pow64 base 1e6", -1, 0, pow_1e6_error, 30 * U},
    {"pow64 base 1e4", -1, 0, pow_1e4_error, 22 * U},
    {"sin64 small", -4, 4, sin_error, 1.5 * U},
    {"cos64 small", -4, 4, cos_error, 1.5 * U},
    {"sin64 at 128k positions", 0, 131072, sin_error, 1.5 * U},
    {"cos64 at 2^30", 0, 1073741824.0, cos_error, 1.5 * U},
};

Test(contract_f64, functions_are_within_their_bounds) {
    if (LDBL_MANT_DIG < 64) cr_skip_test("long double is no wider than double here");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        long double w = worst(&cases[i]);
        printf("%-26s worst error %.2Lf u\n", cases[i].name, w / U);
        cr_expect(w <= cases[i].bound, "%s: %Lg, bound %g", cases[i].name, w, cases[i].bound);
    }
}

Test(contract_f64, a_careless_reduction_is_noticed) {
    function_case mutant = {"mutant", 0, 131072, sin_mutant_error, 1.5 * U};
    cr_assert(worst(&mutant) > mutant.bound);
}

Test(contract_f64, quadrants_have_the_right_signs) {
    static const struct {
        double x, s, c;
    } table[] = {{0, 0, 1}, {0.5, 1, 1}, {2, 1, -1}, {4, -1, -1}, {6, -1, 1}, {-1, -1, 1}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double s, c;
        fd_sincos64(table[i].x, &s, &c);
        cr_expect((table[i].s == 0 ? s == 0 : s * table[i].s > 0) && c * table[i].c > 0, "at %g: %g %g", table[i].x, s,
                  c);
    }
}

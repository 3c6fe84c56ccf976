#include "compare/infer/f16_sums.h"

#include <math.h>

/* Elements that far below the largest may be subnormal there. */
#define SMALLEST 0x1p-6
/* Of a step, to the nearest of them: the division and the product with its result round to binary32, a 2000th of one. Of other sums one in 32
 * is so near. */
#define NEAR 0x1p-6
enum { F16_DIGITS = 11, BF16_DIGITS = 8, FEWEST = 12 };

/* Where the largest is `mantissa` steps of its own, of so many digits. */
static bool are_steps(const double *x, int64_t n, double largest, int mantissa, int digits) {
    int32_t seen = 0;
    for (int64_t i = 0; i < n; i++) {
        const double v = fabs(x[i]) / largest * mantissa;
        if (isnan(v)) return false;
        if (v < SMALLEST * mantissa) continue;
        const double steps = ldexp(v, digits - 1 - ilogb(v));
        if (fabs(steps - nearbyint(steps)) > NEAR) return false;
        seen++;
    }
    return seen >= FEWEST;
}

static bool have_digits(const double *x, int64_t n, int digits) {
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(x[i]));
    bool yes = false;
    for (int mantissa = 1 << (digits - 1); mantissa < 1 << digits && largest > 0 && isfinite(largest) && !yes;
         mantissa++)
        yes = are_steps(x, n, largest, mantissa, digits);
    return yes;
}

bool fd_are_f16_sums(const double *x, int64_t n) {
    return have_digits(x, n, F16_DIGITS) && !have_digits(x, n, BF16_DIGITS);
}

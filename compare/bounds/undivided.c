#include "compare/bounds/undivided.h"

#include <math.h>
#include <stdbool.h>

/* Of a step, to the nearest of them: rescaling and dividing in binary32 leave a 1000th. One other weight in 256 is so near to a step of a
 * given one, and a dozen are asked. */
#define NEAR 0x1p-9
/* Smaller ones may be subnormal there. */
#define SMALLEST 0x1p-14
/* Where keys come one by one, or in parts of a few, most were the largest so far, e^0 itself, and say nothing: a third was left of
 * parts of four keys. */
enum { MOST_SAMPLES = 32, OF_SEEN = 8 };

static bool is_step_of(double p, double largest, int digits) {
    const double x = p / largest, steps = ldexp(x, digits - 1 - ilogb(x));
    return fabs(steps - nearbyint(steps)) <= NEAR;
}

/* Is it a number of so many digits times a larger one, the largest of the keys from there to it? A kernel that goes by keys has met the largest
 * so far before it, one that goes by tiles may meet it behind it; parts of the keys that are joined in the end begin anywhere. */
static bool is_of_a_larger(const double *p, int64_t n, int64_t t, int digits) {
    for (int back = 0; back < 2; back++) {
        double largest = p[t];
        for (int64_t i = t; i >= 0 && i < n; i += back ? -1 : 1) {
            if (!(p[i] > largest)) continue;
            largest = p[i];
            if (p[t] > SMALLEST * largest && is_step_of(p[t], largest, digits)) return true;
        }
    }
    return false;
}

bool fd_were_rounded_undivided(const double *rows, int64_t n_head, int64_t n_kv, int64_t n, double u) {
    const int digits = (int)lrint(-log2(u));
    int64_t n_seen = 0, n_near = 0;
    for (int64_t head = 0; head < n_head; head++) {
        const double *p = rows + head * n_kv;
        double largest = 0;
        for (int64_t t = 0; t < n; t++) largest = fmax(largest, p[t]);
        const int64_t n_sample = n < MOST_SAMPLES ? n : MOST_SAMPLES;
        for (int64_t i = 0; i < n_sample; i++) {
            const int64_t t = i * n / n_sample;
            if (!(p[t] < largest && p[t] > SMALLEST * largest)) continue;
            n_seen++;
            n_near += is_of_a_larger(p, n, t, digits);
        }
    }
    return OF_SEEN * n_near > n_seen;
}

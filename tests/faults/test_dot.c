/* The dot products of faulty ops (faults/dot.c) have the bits of their definitions. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "faults/internal.h"
#include "model/gguf/quant.h"
#include "numerics/contract.h"

enum { LONGEST = 300 };

static float to_f16(float x) {
    return fd_f16_to_f32(fd_f32_to_f16(x));
}

static float dot_f16(const float *w, const float *x, int64_t n) {
    float a[FD_PARTIALS] = {0};
    for (int64_t k = 0; k < n; k++) a[k % FD_PARTIALS] = to_f16(fmaf(w[k], x[k], a[k % FD_PARTIALS]));
    for (int m = FD_PARTIALS; m > 1; m /= 2)
        for (int i = 0; i < m / 2; i++) a[i] = to_f16(a[2 * i] + a[2 * i + 1]);
    return a[0];
}

static bool same(float a, float b) {
    return isnan(a) ? isnan(b) : memcmp(&a, &b, sizeof a) == 0;
}

/* Values of all sizes: subnormals of binary16, and sums that leave its range. */
static float value(uint32_t *state, int size) {
    *state = *state * 1664525u + 1013904223u;
    return ldexpf((float)(int32_t)*state, size - 31);
}

Test(dot, sums_have_the_bits_of_their_definitions) {
    static const struct {
        int w, x; /* powers of 2 */
        float odd;
    } sizes[] = {{0, 0, 0}, {-3, 2, -0.0f}, {-12, -8, 0}, {10, 9, 0}, {0, 0, INFINITY}, {0, 0, NAN}};
    uint32_t state = 1;
    int n_other = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int64_t n = 0; n <= LONGEST; n++) {
            float w[LONGEST + 1], x[LONGEST + 1];
            for (int64_t k = 0; k < n; k++) {
                w[k] = value(&state, sizes[s].w);
                x[k] = value(&state, sizes[s].x);
            }
            if (sizes[s].odd != 0) x[n / 2] = sizes[s].odd;
            cr_assert(same(fd_fault_dot(w, x, n), fd_dot(w, x, n)), "%d elements, sizes %zu", (int)n, s);
            cr_assert(same(fd_fault_dot_f16(w, x, n), dot_f16(w, x, n)), "f16: %d elements, sizes %zu", (int)n, s);
            n_other += !same(dot_f16(w, x, n), fd_dot(w, x, n));
        }
    cr_assert_gt(n_other, LONGEST, "rounding to binary16 shows");
}

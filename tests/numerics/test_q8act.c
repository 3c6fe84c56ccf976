/* Blocks of int8 activations and the sums of their products: what each function must hold, and that the data tell the
 * contract from what it could be confused with. */
#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "numerics/q8act.h"

static uint32_t state;

static float uniform(void) { /* in [-1, 1) */
    state = state * 1664525u + 1013904223u;
    return (float)(int32_t)state * 0x1p-31f;
}

static void fill(float x[FD_Q8_BLOCK], float size) {
    for (int i = 0; i < FD_Q8_BLOCK; i++) x[i] = size * uniform();
}

static float largest_of(const float x[FD_Q8_BLOCK]) {
    float largest = 0.0f;
    for (int i = 0; i < FD_Q8_BLOCK; i++) largest = fd_q8_larger(largest, x[i]);
    return largest;
}

Test(q8act, an_element_is_off_by_half_a_step_at_most) {
    float x[FD_Q8_BLOCK];
    state = 1;
    for (int e = -95; e <= 127; e++)
        for (int n = 0; n < 20; n++) {
            fill(x, ldexpf(1.0f, e));
            float largest = largest_of(x), d = fd_q8_scale(largest), inverse = fd_q8_inverse(largest);
            for (int i = 0; i < FD_Q8_BLOCK && largest >= FD_Q8_LEAST; i++) {
                int32_t q = fd_q8_round(x[i], inverse);
                cr_assert(q >= -127 && q <= 127);
                /* two roundings of the product's factors and one of d: 127 steps off by 2^-23 each at most */
                cr_assert(fabs((double)x[i] - (double)d * q) <= (0.5 + 127 * 0x1p-22) * (double)d);
                cr_assert(fabsf(x[i]) < largest || abs(q) == 127, "the largest becomes ±127");
            }
        }
}

Test(q8act, halves_go_to_the_even_integer) {
    float inverse = fd_q8_inverse(127.0f);
    cr_assert(inverse == 1.0f);
    static const struct {
        float x;
        int32_t q;
    } cases[] = {{0.5f, 0},   {1.5f, 2},   {2.5f, 2},     {-0.5f, 0},
                 {-1.5f, -2}, {-2.5f, -2}, {126.5f, 126}, {0.50000006f, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(fd_q8_round(cases[i].x, inverse), cases[i].q);
}

Test(q8act, zeros_and_what_is_smaller_than_the_least_are_zeros) {
    static const float small[] = {0.0f, -0.0f, 0x1p-149f, 0x1.fffffep-97f};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        float largest = fd_q8_larger(0.0f, small[i]);
        cr_expect(fd_bits32(fd_q8_scale(largest)) == 0);
        cr_expect_eq(fd_q8_round(small[i], fd_q8_inverse(largest)), 0);
    }
    cr_expect(fd_q8_scale(FD_Q8_LEAST) > 0 && fd_q8_round(FD_Q8_LEAST, fd_q8_inverse(FD_Q8_LEAST)) == 127);
}

Test(q8act, an_infinity_or_nan_makes_every_sum_nan) {
    static const float bad[] = {INFINITY, -INFINITY, NAN, -NAN};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        float largest = fd_q8_larger(fd_q8_larger(fd_q8_larger(0.0f, 3.0f), bad[i]), -FLT_MAX);
        float d = fd_q8_scale(largest);
        cr_expect(isnan(d), "%g", (double)bad[i]);
        cr_expect_eq(fd_q8_round(bad[i], fd_q8_inverse(largest)), 0);
        cr_expect(isnan(fd_q8_add(1.0f, 0, 1.0f, d)) && isnan(fd_q8_subtract(1.0f, 0.0f, fd_q8_sum(d, 0))));
    }
    cr_expect(fd_q8_scale(FLT_MAX) == FLT_MAX / 127.0f, "the largest number is one");
}

/* Every scale a format can have: f16 significands times integers of 7 bits, and every size of s. */
Test(q8act, times_is_one_rounding_of_the_product) {
    static const int scales[] = {1, 3, 63, -128, 127, -77};
    state = 2;
    for (int significand = 1024; significand < 2048; significand += 7)
        for (size_t k = 0; k < sizeof scales / sizeof *scales; k++)
            for (int n = 0; n < 40; n++) {
                float a = ldexpf((float)(significand * scales[k]), n % 30 - 24);
                int32_t s = n == 0 ? 520192 : n == 1 ? -520192 : n == 2 ? 0 : (int32_t)(uniform() * 520192.0f);
                float expected = (float)s * a; /* s is exact */
                float found = fd_q8_times(fd_from_bits32((uint32_t)(FD_Q8_MAGIC_BITS + s)), a);
                cr_assert(found == expected, "s %d, a %g: %g, expected %g", s, (double)a, (double)found,
                          (double)expected);
            }
    cr_expect(isnan(fd_q8_times(FD_Q8_MAGIC + 5.0f, INFINITY)));
}

/* One rounding in the product, one in the addition; -b·sum likewise. */
Test(q8act, a_block_is_added_with_two_roundings) {
    state = 3;
    for (int n = 0; n < 10000; n++) {
        float acc = uniform() * 100, a = uniform(), d = fabsf(uniform()), b = uniform();
        a = (float)(int)(a * 1024) * 0x1p-12f;
        int32_t s = (int32_t)(uniform() * 10000);
        double product = (double)s * a, step = fabs(product) * d * 0x1p-24, sum = acc + product * d;
        double found = fd_q8_add(acc, s, a, d);
        cr_assert(fabs(found - sum) <= step + fabs(sum) * 0x1p-23);
        found = fd_q8_subtract(acc, b, d);
        cr_assert(fabs(found - ((double)acc - (double)b * d)) <= fabs(found) * 0x1p-23);
    }
}

/* ---- what would pass for it does not ---- */

Test(q8act, random_blocks_tell_the_contract_from_its_neighbours) {
    enum { N = 64 };
    float x[FD_Q8_BLOCK], one_chain = 0, halves[2] = {0}, mod2[2] = {0}, other_product = 0;
    int away = 0;
    state = 4;
    for (int b = 0; b < N; b++) {
        fill(x, 1.0f + (float)b / 9);
        for (int i = 0; i < FD_Q8_BLOCK && b == 0; i++) x[i] = rintf(x[i] * 64) / 64; /* ties, beside a step of 1/32 */
        if (b == 0) x[0] = 127.0f / 32;
        float largest = largest_of(x), d = fd_q8_scale(largest), inverse = fd_q8_inverse(largest);
        float a = (float)(1024 + b * 13) * 0x1p-12f;
        int32_t s = 0;
        for (int i = 0; i < FD_Q8_BLOCK; i++) {
            int32_t q = fd_q8_round(x[i], inverse);
            s += q * (i * 7 % 31 - 15);
            away += q != (int32_t)roundf(x[i] * inverse);
        }
        one_chain = fd_q8_add(one_chain, s, a, d);
        halves[b >= N / 2] = fd_q8_add(halves[b >= N / 2], s, a, d);
        mod2[b % 2] = fd_q8_add(mod2[b % 2], s, a, d);
        other_product = fmaf((float)s, a * d, other_product);
    }
    float sum = mod2[0] + mod2[1];
    cr_expect(away > 0, "rounding half away from zero is something else");
    cr_expect(fd_bits32(sum) != fd_bits32(one_chain) && fd_bits32(sum) != fd_bits32(halves[0] + halves[1]));
    cr_expect(fd_bits32(one_chain) != fd_bits32(other_product), "s·(a·d) is not (s·a)·d");
}

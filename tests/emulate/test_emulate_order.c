/* Sums: every order adds every element once, orders differ in bits, f16 sums are sums of f16. */
#include <criterion/criterion.h>
#include <math.h>

#include "emulate/order.h"
#include "emulate/rounding.h"

enum { N = 301 }; /* a multiple of no lane count and no block */

static float w[N], x[N];

static void fill(void) {
    uint64_t seed = 3; /* Knuth's MMIX */
    for (int i = 0; i < 2 * N; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        (i < N ? w : x)[i % N] = (float)((int32_t)(seed >> 40) - (1 << 23)) * 0x1p-23f;
    }
}

Test(emulate_order, every_order_adds_every_element_once) {
    float integers[N], ones[N];
    for (int i = 0; i < N; i++) {
        integers[i] = (float)(1 + i % 7); /* exact in any order */
        ones[i] = 1;
    }
    for (int64_t n = 0; n <= N; n += n < 40 ? 1 : 29) {
        float truth = 0;
        for (int64_t i = 0; i < n; i++) truth += integers[i];
        for (uint64_t seed = 0; seed < 200; seed++) {
            fd_emulate_order order = fd_emulate_order_pick(seed, 0);
            cr_assert_eq(fd_emulate_dot(&order, integers, ones, n), truth, "seed %d, n %d", (int)seed, (int)n);
            cr_assert_eq(fd_emulate_sum(&order, integers, n), truth, "seed %d, n %d", (int)seed, (int)n);
            cr_assert_eq(fd_emulate_dot_f16(&order, integers, ones, n), truth, "seed %d, n %d", (int)seed, (int)n);
        }
    }
}

Test(emulate_order, orders_differ_in_bits_and_stay_within_their_bound, .init = fill) {
    double truth = 0, magnitude = 0;
    for (int i = 0; i < N; i++) {
        truth += (double)w[i] * (double)x[i];
        magnitude += fabs((double)w[i] * (double)x[i]);
    }
    int different = 0;
    fd_emulate_order first = fd_emulate_order_pick(0, 0);
    float one = fd_emulate_dot(&first, w, x, N);
    for (uint64_t seed = 0; seed < 200; seed++) {
        fd_emulate_order order = fd_emulate_order_pick(seed, 0);
        float dot = fd_emulate_dot(&order, w, x, N), half = fd_emulate_dot_f16(&order, w, x, N);
        different += dot != one;
        cr_expect(fabs((double)dot - truth) <= (N + 1) * 0x1p-24 * magnitude, "seed %d", (int)seed);
        cr_expect_eq(half, fd_round_f16(half));
        /* an addition in f16 for every step of at least four products, each sum at most `magnitude` */
        cr_expect(fabs((double)half - truth) <= (N / 4 + 2) * 0x1p-11 * magnitude, "seed %d", (int)seed);
        cr_expect(fabs((double)half - truth) > 16 * fabs((double)dot - truth), "seed %d: not f16", (int)seed);
    }
    cr_expect_gt(different, 100, "%d of 200 seeds differ from seed 0", different);
}

Test(emulate_order, f16_sums_of_several_vectors_are_those_of_each, .init = fill) {
    for (int64_t n = 1; n <= N - FD_EMULATE_DOTS; n += n < 40 ? 1 : 29)
        for (uint64_t seed = 0; seed < 20; seed++) {
            fd_emulate_order order = fd_emulate_order_pick(seed, 0);
            const float *from[FD_EMULATE_DOTS];
            float together[FD_EMULATE_DOTS];
            for (int i = 0; i < FD_EMULATE_DOTS; i++) from[i] = x + i;
            fd_emulate_dots_f16(&order, w, from, n, together);
            for (int i = 0; i < FD_EMULATE_DOTS; i++)
                cr_assert_eq(fd_bits32(together[i]), fd_bits32(fd_emulate_dot_f16(&order, w, from[i], n)), "n %d",
                             (int)n);
        }
}

Test(emulate_order, f16_sums_overflow_as_they_do_there) {
    float large[8] = {300, 300, 300, 300, 300, 300, 300, 300};
    fd_emulate_order order = {.lanes = 1, .f16_step = 4};
    cr_expect(isinf(fd_emulate_dot_f16(&order, large, large, 8)));
    cr_expect_eq(fd_emulate_dot(&order, large, large, 8), 720000.0f);
}

Test(emulate_order, kernels_of_one_engine_have_orders_of_their_own) {
    int different = 0;
    for (uint32_t kernel = 1; kernel < 20; kernel++) {
        fd_emulate_order a = fd_emulate_order_pick(0, 0), b = fd_emulate_order_pick(0, kernel);
        different += a.lanes != b.lanes || a.block != b.block;
    }
    cr_expect_gt(different, 10);
}

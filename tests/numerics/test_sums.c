/* Dot products and sums: the order of the contract, and its error bound. */
#include <criterion/criterion.h>
#include <math.h>

#include "numerics/contract.h"

enum { MAX_N = 5000 };
static float w[MAX_N], x[MAX_N];

static void fill(uint32_t seed) {
    for (int i = 0; i < MAX_N; i++) {
        seed = seed * 1664525u + 1013904223u;
        w[i] = (float)((int32_t)seed) * 0x1p-31f;
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)((int32_t)seed) * 0x1p-29f;
    }
}

/* The GPU's mapping: a lane holds `per_lane` neighbouring partials; adds inside the lane, then across by 1, 2, 4, … */
static float dot_by_lanes(int n, int per_lane) {
    int lanes = FD_PARTIALS / per_lane;
    float lane_sum[FD_PARTIALS];
    for (int l = 0; l < lanes; l++) {
        float a[8];
        for (int j = 0; j < per_lane; j++) {
            a[j] = 0.0f;
            for (int k = l * per_lane + j; k < n; k += FD_PARTIALS) a[j] = fmaf(w[k], x[k], a[j]);
        }
        for (int m = per_lane; m > 1; m /= 2)
            for (int i = 0; i < m / 2; i++) a[i] = a[2 * i] + a[2 * i + 1];
        lane_sum[l] = a[0];
    }
    for (int step = 1; step < lanes; step *= 2) { /* shfl_xor: every lane adds its partner */
        float next[FD_PARTIALS];
        for (int l = 0; l < lanes; l++) next[l] = lane_sum[l] + lane_sum[l ^ step];
        memcpy(lane_sum, next, sizeof next);
    }
    return lane_sum[0];
}

static const int lengths[] = {0, 1, 2, 31, 63, 64, 65, 127, 128, 172, 896, 4096, 4864, MAX_N};
#define N_LENGTHS (sizeof lengths / sizeof *lengths)

Test(sums, every_lane_mapping_gives_the_bits_of_scalar_c) {
    fill(1);
    for (size_t i = 0; i < N_LENGTHS; i++)
        for (int per_lane = 2; per_lane <= 8; per_lane *= 2)
            cr_expect(fd_bits32(dot_by_lanes(lengths[i], per_lane)) == fd_bits32(fd_dot(w, x, lengths[i])),
                      "n %d, %d partials a lane", lengths[i], per_lane);
}

/* |error| ≤ h·u·Σ|w||x| with h the longest chain: ⌈n/64⌉ fused steps and 6 additions. */
Test(sums, dot_is_within_the_bound_of_its_chain) {
    for (uint32_t seed = 1; seed <= 20; seed++) {
        fill(seed);
        for (size_t i = 0; i < N_LENGTHS; i++) {
            int n = lengths[i];
            double exact = 0, magnitude = 0;
            for (int k = 0; k < n; k++) {
                exact += (double)w[k] * x[k];
                magnitude += fabs((double)w[k] * x[k]);
            }
            double bound = ((n + 63) / 64 + 6) * 0x1p-24 * magnitude * 1.001;
            cr_expect(fabs((double)fd_dot(w, x, n) - exact) <= bound, "n %d", n);
        }
    }
}

Test(sums, another_order_gives_other_bits) {
    fill(3);
    float sequential = 0;
    for (int k = 0; k < 4096; k++) sequential = fmaf(w[k], x[k], sequential);
    cr_assert(fd_bits32(sequential) != fd_bits32(fd_dot(w, x, 4096)));
}

Test(sums, sum_is_dot_with_ones) {
    fill(4);
    for (int k = 0; k < MAX_N; k++) w[k] = 1.0f;
    for (size_t i = 0; i < N_LENGTHS; i++)
        cr_expect(fd_bits32(fd_sum(x, lengths[i])) == fd_bits32(fd_dot(w, x, lengths[i])), "n %d", lengths[i]);
}

Test(sums, nan_and_infinity_reach_the_result) {
    fill(5);
    x[100] = NAN;
    cr_assert(isnan(fd_dot(w, x, 896)));
    x[100] = INFINITY;
    cr_assert(isinf(fd_dot(w, x, 896)));
}

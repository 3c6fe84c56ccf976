/* Fingerprints, statistics and copies of observed rows. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/trace.h"

static const fd_node row_node = {.n_dim = 1, .shape = {6}};

static fd_fingerprint print32(const float *x, int32_t n) {
    fd_node node = {.n_dim = 1, .shape = {n}};
    fd_observation o = {NULL, &node, 0, 0, 1, n, FD_F32, x};
    return fd_observation_fingerprint(&o, 0);
}

static bool equal(fd_fingerprint a, fd_fingerprint b) {
    return a.lo == b.lo && a.hi == b.hi;
}

static float nan_with(uint32_t payload) {
    return fd_from_bits32(0x7fc00000u | payload);
}

typedef struct pair_case {
    const char *name;
    float a[6], b[6];
    bool same;
} pair_case;

Test(observe, fingerprint_tells_bits_and_places_apart) {
    const pair_case cases[] = {
        {"identical", {1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}, true},
        {"neighbours swapped inside a word", {1, 2, 3, 4, 5, 6}, {2, 1, 3, 4, 5, 6}, false},
        {"words swapped", {1, 2, 3, 4, 5, 6}, {3, 4, 1, 2, 5, 6}, false},
        {"heads permuted", {1, 2, 3, 4, 5, 6}, {4, 5, 6, 1, 2, 3}, false},
        {"shifted by one", {0, 1, 2, 3, 4, 5}, {1, 2, 3, 4, 5, 0}, false},
        {"minus zero", {0.0f, 1, 1, 1, 1, 1}, {-0.0f, 1, 1, 1, 1, 1}, false},
        {"one ulp", {1, 1, 1, 1, 1, 1.0f}, {1, 1, 1, 1, 1, 1.0000001f}, false},
        {"sign", {1, 1, 1, 1, 1, 1}, {1, 1, 1, -1, 1, 1}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(equal(print32(cases[i].a, 6), print32(cases[i].b, 6)), cases[i].same, "%s", cases[i].name);
}

Test(observe, fingerprint_takes_every_nan_for_the_same_and_no_other_value) {
    float quiet[3] = {1, nan_with(0), 3}, other[3] = {1, nan_with(0x1234), 3}, negative[3] = {1, -nan_with(7), 3};
    float infinite[3] = {1, INFINITY, 3};
    cr_expect(equal(print32(quiet, 3), print32(other, 3)));
    cr_expect(equal(print32(quiet, 3), print32(negative, 3)));
    cr_expect_not(equal(print32(quiet, 3), print32(infinite, 3)));
}

Test(observe, fingerprint_counts_a_missing_last_element) {
    float x[4] = {1, 2, 3, 0};
    cr_expect_not(equal(print32(x, 3), print32(x, 4)));
}

/* Two heads, positions 3 and 4 in a batch that ends at 5: rows are padded to 5, the row of position 3 has 4. */
static void padded(fd_node *node, float data[20], fd_observation *o) {
    *node = (fd_node){.op = FD_OP_ATTN_SCORES, .n_dim = 2, .shape = {2, 0}, .over_kv = true};
    for (int i = 0; i < 20; i++) data[i] = (float)(i + 1);
    data[4] = data[9] = -INFINITY; /* the padding of row 0 */
    *o = (fd_observation){NULL, node, 0, 3, 2, 10, FD_F32, data};
}

Test(observe, padding_is_left_out) {
    fd_node node;
    float data[20], copy[10];
    fd_observation o;
    padded(&node, data, &o);
    const float row0[8] = {1, 2, 3, 4, 6, 7, 8, 9}, row1[10] = {11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
    fd_observation_copy(&o, 0, copy);
    cr_expect_arr_eq(copy, row0, sizeof row0);
    fd_observation_copy(&o, 1, copy);
    cr_expect_arr_eq(copy, row1, sizeof row1);
    cr_expect(equal(fd_observation_fingerprint(&o, 0), fd_fingerprint_f32(row0, 8)));
    cr_expect(equal(fd_observation_fingerprint(&o, 1), fd_fingerprint_f32(row1, 10)));
    fd_trace_stats stats;
    fd_observation_stats(&o, 0, &stats);
    cr_expect_eq(stats.n_neg_inf, 0.0);
    cr_expect_eq(stats.max, 9.0);
    cr_expect_eq(stats.mean, 5.0);
}

Test(observe, pairs_straddle_heads_of_odd_length) {
    fd_node node = {.n_dim = 2, .shape = {3, 0}, .over_kv = true};
    float data[24];
    double wide[24];
    for (int i = 0; i < 24; i++) wide[i] = data[i] = (float)(i * i);
    const float row0[9] = {0, 1, 4, 16, 25, 36, 64, 81, 100};
    double wide0[9];
    for (int i = 0; i < 9; i++) wide0[i] = row0[i];
    fd_observation o = {NULL, &node, 0, 2, 2, 12, FD_F32, data}, o64 = {NULL, &node, 0, 2, 2, 12, FD_F64, wide};
    cr_expect(equal(fd_observation_fingerprint(&o, 0), fd_fingerprint_f32(row0, 9)));
    cr_expect(equal(fd_observation_fingerprint(&o64, 0), fd_fingerprint_f64(wide0, 9)));
}

typedef struct stats_case {
    const char *name;
    float x[6];
    fd_trace_stats expected;
} stats_case;

static bool same(double a, double b) {
    return fd_canonical64(a) == fd_canonical64(b);
}

Test(observe, stats_count_nan_and_infinity_apart) {
    const stats_case cases[] = {
        {"finite", {1, -2, 3, -4, 0, 8}, {-4, 8, 1, 3.9581140290126391, 8, 0, 0, 0, 1}},
        {"zeros of both signs", {0, -0.0f, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0, 6}},
        {"one NaN", {1, NAN, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 0, 0, 0}},
        {"infinities", {INFINITY, -INFINITY, 2, 2, -INFINITY, 2}, {2, 2, 2, 2, 2, 0, 1, 2, 0}},
        {"nothing finite", {NAN, NAN, INFINITY, NAN, NAN, NAN}, {NAN, NAN, NAN, NAN, NAN, 5, 1, 0, 0}},
        {"largest numbers", {3e38f, -3e38f, 3e38f, -3e38f, 3e38f, -3e38f}, {0, 0, 0, 0, 0, 0, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_observation o = {NULL, &row_node, 0, 0, 1, 6, FD_F32, cases[i].x};
        fd_trace_stats s, e = cases[i].expected;
        fd_observation_stats(&o, 0, &s);
        if (i == 5) { /* squares of binary32 do not overflow binary64 */
            double big = (double)3e38f;
            e = (fd_trace_stats){-big, big, 0, sqrt(6 * big * big / 6), big, 0, 0, 0, 0};
        }
        cr_expect(same(s.min, e.min) && same(s.max, e.max) && same(s.mean, e.mean) && same(s.absmax, e.absmax), "%s",
                  cases[i].name);
        cr_expect(same(s.rms, e.rms), "%s: rms %.17g", cases[i].name, s.rms);
        cr_expect(s.n_nan == e.n_nan && s.n_pos_inf == e.n_pos_inf && s.n_neg_inf == e.n_neg_inf &&
                      s.n_zero == e.n_zero,
                  "%s", cases[i].name);
    }
}

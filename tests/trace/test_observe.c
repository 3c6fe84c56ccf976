/* Fingerprints, statistics and copies of observed rows. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/trace.h"

static const fd_node row_node = {.n_dim = 1, .shape = {6}};

static fd_fingerprint print32(const float *x, int32_t n) {
    fd_node node = {.n_dim = 1, .shape = {n}};
    fd_observation o = {.node = &node, .pos0 = 0, .n_pos = 1, .row_stride = n, .dtype = FD_F32, .data = x};
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
    *o = (fd_observation){.node = node, .pos0 = 3, .n_pos = 2, .row_stride = 10, .dtype = FD_F32, .data = data};
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
    fd_observation o = {.node = &node, .pos0 = 2, .n_pos = 2, .row_stride = 12, .dtype = FD_F32, .data = data}, o64 = {.node = &node, .pos0 = 2, .n_pos = 2, .row_stride = 12, .dtype = FD_F64, .data = wide};
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
        fd_observation o = {.node = &row_node, .pos0 = 0, .n_pos = 1, .row_stride = 6, .dtype = FD_F32, .data = cases[i].x};
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

/* The order of a sum, said another way: partial sums of a block by striding, the tree by recursion. */
static double tree(const double *a, int n) {
    return n == 1 ? a[0] : tree(a, n / 2) + tree(a + n / 2, n / 2);
}

static double sum_by_blocks(const double *x, int64_t n) {
    double total = 0;
    for (int64_t block = 0; block < n; block += 1024) {
        double partial[64];
        for (int64_t j = 0; j < 64; j++) {
            partial[j] = 0;
            for (int64_t k = block + j; k < n && k < block + 1024; k += 64) partial[j] += x[k];
        }
        total += tree(partial, 64);
    }
    return total;
}

Test(observe, sums_follow_blocks_partials_and_tree) {
    static double x[5000];
    const int64_t lengths[] = {1, 2, 63, 64, 65, 1000, 1023, 1024, 1025, 2048, 4999};
    uint64_t z = 1;
    for (int i = 0; i < 5000; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        x[i] = ldexp((double)(int64_t)z, (int)(z >> 40 & 15) - 70);
    }
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        fd_sum64 sum = {0};
        double in_turn = 0;
        for (int64_t k = 0; k < lengths[i]; k++) fd_sum64_add(&sum, x[k]), in_turn += x[k];
        double found = fd_sum64_end(&sum);
        cr_expect(same(found, sum_by_blocks(x, lengths[i])), "%lld elements", (long long)lengths[i]);
        if (lengths[i] > 1000) cr_expect_not(same(found, in_turn), "%lld elements: any order will do", (long long)lengths[i]);
    }
}

Test(observe, what_the_executor_worked_out_is_taken) {
    const float x[6] = {1, 2, 3, 4, 5, 6};
    const fd_fingerprint print = {17, 4};
    const fd_stats stats = {.min = -1, .n_nan = 3};
    fd_observation o = {.node = &row_node, .n_pos = 1, .row_stride = 6, .dtype = FD_F32, .data = x};
    fd_stats found;
    cr_expect(equal(fd_observation_fingerprint(&o, 0), fd_fingerprint_f32(x, 6)));
    o.data = NULL, o.fingerprints = &print, o.stats = &stats;
    cr_expect(equal(fd_observation_fingerprint(&o, 0), print));
    fd_observation_stats(&o, 0, &found);
    cr_expect(found.min == -1 && found.n_nan == 3);
}

/* The form for a contiguous row beside the formula, element by element. */
Test(observe, stats_of_a_row_are_those_of_its_elements) {
    static float x[3000];
    const int32_t lengths[] = {1, 2, 63, 64, 65, 127, 1000, 1023, 1024, 1025, 2048, 2999};
    uint64_t z = 5;
    for (int i = 0; i < 3000; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        x[i] = ldexpf((float)(int32_t)(z >> 32), (int)(z >> 20 & 31) - 50);
        if (z >> 8 & 1 && i % 7 == 3) x[i] = i % 2 ? NAN : i % 3 ? INFINITY : -INFINITY;
        if (i % 41 == 7) x[i] = -0.0f;
    }
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        fd_node node = {.n_dim = 1, .shape = {lengths[k]}};
        fd_observation o = {.node = &node, .n_pos = 1, .row_stride = lengths[k], .dtype = FD_F32, .data = x};
        fd_tally tally = fd_tally_none();
        fd_sum64 sum = {0}, squares = {0};
        for (int32_t i = 0; i < lengths[k]; i++) {
            double term = fd_tally_add(&tally, (double)x[i]);
            fd_sum64_add(&sum, term);
            fd_sum64_add(&squares, term * term);
        }
        fd_stats expected = fd_tally_end(&tally, fd_sum64_end(&sum), fd_sum64_end(&squares)), found;
        fd_observation_stats(&o, 0, &found);
        for (int c = 0; c < 9; c++)
            cr_expect(same((&expected.min)[c], (&found.min)[c]), "%d elements, column %d: %.17g, expected %.17g",
                      lengths[k], c, (&found.min)[c], (&expected.min)[c]);
    }
}

/* Heads of odd length with padding between them, of position 36 in a batch that ends at 40. */
Test(observe, stats_of_padded_heads_are_those_of_the_row_without_padding) {
    enum { N_HEAD = 50, ROOM = 40, SEEN = 37 };
    static float padded_row[4 * N_HEAD * ROOM], row[N_HEAD * SEEN];
    fd_node node = {.op = FD_OP_ATTN_SCORES, .n_dim = 2, .shape = {N_HEAD, 0}, .over_kv = true};
    fd_node flat = {.n_dim = 1, .shape = {N_HEAD * SEEN}};
    for (int i = 0; i < N_HEAD * ROOM; i++) padded_row[i] = i % 19 ? sinf((float)i) : NAN;
    for (int i = 0; i < N_HEAD * SEEN; i++) row[i] = padded_row[i / SEEN * ROOM + i % SEEN];
    fd_observation o = {.node = &node, .pos0 = SEEN - 1, .n_pos = ROOM - SEEN + 1, .row_stride = N_HEAD * ROOM,
                        .dtype = FD_F32, .data = padded_row};
    fd_observation plain = {.node = &flat, .n_pos = 1, .row_stride = N_HEAD * SEEN, .dtype = FD_F32, .data = row};
    fd_stats found, expected;
    fd_observation_stats(&o, 0, &found);
    fd_observation_stats(&plain, 0, &expected);
    for (int c = 0; c < 9; c++) cr_expect(same((&expected.min)[c], (&found.min)[c]), "column %d", c);
    cr_expect(expected.n_nan > 0);
}

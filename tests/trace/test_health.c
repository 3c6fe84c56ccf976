/* Entropy, sink, best logits, loops. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "dumpers/observe/health.h"

/* Entropies whose value is known in closed form. */
typedef struct entropy_case {
    const char *name;
    double weights[8];
    int32_t n_kv;
    double entropy, sink;
} entropy_case;

Test(health, entropy_of_known_distributions) {
    const entropy_case cases[] = {
        {"certain", {1}, 1, 0.0, 1.0},
        {"certain among many, 0 ln 0 = 0", {0, 0, 1, 0}, 4, 0.0, 0.0},
        {"even over two", {0.5, 0.5}, 2, 0.69314718055994531, 0.5},
        {"even over eight", {.125, .125, .125, .125, .125, .125, .125, .125}, 8, 2.0794415416798357, 0.125},
        {"quarter and three quarters", {0.25, 0.75}, 2, 0.56233514461880829, 0.25},
        {"subnormal weight", {1, 1e-310}, 2, 0.0, 1.0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float entropy, sink, narrow[8];
        for (int k = 0; k < 8; k++) narrow[k] = (float)cases[i].weights[k];
        fd_health_attention(FD_F64, cases[i].weights, 1, 8, cases[i].n_kv, &entropy, &sink);
        cr_expect(fabs((double)entropy - cases[i].entropy) <= 1e-7, "%s: %g", cases[i].name, (double)entropy);
        cr_expect_eq((double)sink, cases[i].sink);
        fd_health_attention(FD_F32, narrow, 1, 8, cases[i].n_kv, &entropy, &sink);
        cr_expect(fabs((double)entropy - cases[i].entropy) <= 1e-7, "%s in binary32: %g", cases[i].name,
                  (double)entropy);
    }
}

Test(health, entropy_of_no_distribution_is_nan) {
    const double bad[] = {NAN, -0.5, INFINITY};
    for (int i = 0; i < 3; i++) {
        double weights[2] = {0.5, bad[i]};
        float entropy, sink;
        fd_health_attention(FD_F64, weights, 1, 2, 2, &entropy, &sink);
        cr_expect(isnan(entropy));
    }
}

Test(health, heads_are_apart_and_padding_is_left_out) {
    const float weights[3][4] = {{1, 0, 9, 9}, {0.5f, 0.5f, 9, 9}, {0, 1, 9, 9}};
    float entropy[3], sink[3];
    fd_health_attention(FD_F32, weights, 3, 4, 2, entropy, sink);
    cr_expect_eq(entropy[0], 0.0f);
    cr_expect(fabsf(entropy[1] - 0.69314718f) <= 1e-7f);
    cr_expect_eq(entropy[2], 0.0f);
    cr_expect(sink[0] == 1.0f && sink[1] == 0.5f && sink[2] == 0.0f);
}

Test(health, lowest_id_wins_ties) {
    float logits[20] = {0};
    fd_top_logits h;
    logits[17] = logits[4] = logits[9] = 2.0f;
    logits[12] = 3.0f;
    fd_health_logits(FD_F32, logits, 20, &h);
    const int32_t expected[FD_TOP_K] = {12, 4, 9, 17, 0, 1, 2, 3, 5, 6};
    cr_expect_arr_eq(h.id, expected, sizeof expected);
    cr_expect(h.logit[0] == 3.0f && h.logit[3] == 2.0f && h.logit[9] == 0.0f && h.range == 3.0f);
    double e = exp(-1.0), z = exp(-3.0);
    cr_expect(fabs((double)h.probability - 1.0 / (1.0 + 3.0 * e + 16.0 * z)) <= 1e-7);
}

Test(health, small_vocabulary_and_far_logits) {
    const double logits[3] = {-1e30, 5.0, -INFINITY};
    fd_top_logits h;
    fd_health_logits(FD_F64, logits, 3, &h);
    cr_expect(h.id[0] == 1 && h.id[1] == 0 && h.id[2] == 2 && h.id[3] == -1);
    cr_expect(isnan(h.logit[3]) && isnan(h.range));
    cr_expect_eq(h.probability, 1.0f);
}

Test(health, a_nan_logit_is_named_and_ranks_nothing) {
    float logits[20] = {0};
    fd_top_logits h;
    logits[3] = 7;
    logits[11] = logits[15] = NAN;
    fd_health_logits(FD_F32, logits, 20, &h);
    cr_expect_eq(h.id[0], 11);
    cr_expect(isnan(h.logit[0]) && isnan(h.probability) && isnan(h.range));
    for (int i = 1; i < FD_TOP_K; i++) cr_expect(h.id[i] == -1 && isnan(h.logit[i]));
}

Test(health, an_infinite_logit_has_no_probability) {
    const float logits[2] = {INFINITY, 1};
    fd_top_logits h;
    fd_health_logits(FD_F32, logits, 2, &h);
    cr_expect(h.id[0] == 0 && isinf(h.logit[0]) && isnan(h.probability));
}

typedef struct loop_case {
    const char *tokens; /* a letter a token */
    int32_t period;
} loop_case;

Test(health, loops_by_smallest_period) {
    const loop_case cases[] = {
        {"a", 0},
        {"aaaaa", 0},
        {"aaaaaa", 1},
        {"xaaaaaa", 1},
        {"ababab", 2},
        {"xababab", 2},
        {"abababx", 0},
        {"babab", 0},
        {"abcabcabc", 3},
        {"abcabcab", 0},
        {"xyzabcabcabc", 3},
        {"aabaabaab", 3},
        {"abcdabcdabcd", 4},
        {"abcdabcdabce", 0},
        {"abababababab", 2},
        {"abcabcabcabcaaaaaa", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t tokens[32], n = (int32_t)strlen(cases[i].tokens);
        for (int32_t k = 0; k < n; k++) tokens[k] = cases[i].tokens[k];
        cr_expect_eq(fd_health_loop(tokens, n), cases[i].period, "%s: %d", cases[i].tokens, fd_health_loop(tokens, n));
    }
}

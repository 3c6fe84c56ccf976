/* The sampler: what each option keeps, how often it draws what, and what it refuses. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/sampler.h"
#include "tests/common.h"

enum { N = 6, N_DRAW = 20000 };

static fd_sampler *make(fd_sampler_options options, int32_t n_vocab) {
    fd_sampler *sampler = NULL;
    fd_error err = {0};
    cr_assert(fd_sampler_new(&options, n_vocab, &sampler, &err) == FD_OK, "%s", err.message);
    return kept(sampler);
}

static int32_t sample(fd_sampler *sampler, const float *logits, const int32_t *history, int32_t n_history) {
    int32_t token = -1;
    fd_error err = {0};
    cr_assert(fd_sample(sampler, logits, history, n_history, &token, &err) == FD_OK, "%s", err.message);
    return token;
}

/* Probabilities 0.4, 0.3, 0.15, 0.1, 0.05 as logits, out of order and with one that is never drawn. */
static const double P[N] = {0.1, 0.4, 0, 0.3, 0.05, 0.15};
static void fill_logits(float logits[N]) {
    for (int i = 0; i < N; i++) logits[i] = P[i] > 0 ? (float)(log(P[i]) + 3) : -INFINITY;
}

/* Chi-square over the ids with a share; the 1 - 1e-6 quantile for up to 5 degrees of freedom is 35.9. An id without a
 * share that is drawn all the same makes it infinite. */
static double chi_square(fd_sampler_options options, const double *expected) {
    float logits[N];
    fill_logits(logits);
    fd_sampler *sampler = make(options, N);
    double counts[N] = {0}, sum = 0, chi = 0;
    for (int i = 0; i < N_DRAW; i++) counts[sample(sampler, logits, NULL, 0)]++;
    for (int i = 0; i < N; i++) sum += expected[i];
    for (int i = 0; i < N; i++) {
        double mean = N_DRAW * expected[i] / sum, off = counts[i] - mean;
        if (mean > 0)
            chi += off * off / mean;
        else if (counts[i] > 0)
            chi = INFINITY;
    }
    return chi;
}

typedef struct share_case {
    const char *what;
    fd_sampler_options options;
    double expected[N]; /* in proportion */
} share_case;

/* top_k, top_p, min_p, temperature; the rest off, seed 42 */
#define OPTIONS(k, p, m, t)                                                                                            \
    { .temperature = t, .top_k = k, .top_p = p, .min_p = m, .repeat_penalty = 1, .repeat_last = -1, .seed = 42 }
/* clang-format off */
static const share_case CASES[] = {
    {"temperature 1", OPTIONS(0, 1, 0, 1), {0.1, 0.4, 0, 0.3, 0.05, 0.15}},
    {"temperature 0.5 squares", OPTIONS(0, 1, 0, 0.5f), {0.01, 0.16, 0, 0.09, 0.0025, 0.0225}},
    {"temperature 2 takes roots", OPTIONS(0, 1, 0, 2), {0.31623, 0.63246, 0, 0.54772, 0.22361, 0.3873}},
    {"top-k 2", OPTIONS(2, 1, 0, 1), {0, 0.4, 0, 0.3, 0, 0}},
    {"top-k 1", OPTIONS(1, 1, 0, 1), {0, 1, 0, 0, 0, 0}},
    {"top-k beyond the candidates", OPTIONS(100, 1, 0, 1), {0.1, 0.4, 0, 0.3, 0.05, 0.15}},
    {"top-p 0.69 keeps two", OPTIONS(0, 0.69f, 0, 1), {0, 0.4, 0, 0.3, 0, 0}},
    {"top-p 0.72 keeps three", OPTIONS(0, 0.72f, 0, 1), {0, 0.4, 0, 0.3, 0, 0.15}},
    {"a tiny top-p keeps the best", OPTIONS(0, 1e-6f, 0, 1), {0, 1, 0, 0, 0, 0}},
    {"top-p is taken of what top-k left", OPTIONS(3, 0.81f, 0, 1), {0, 0.4, 0, 0.3, 0, 0}},
    {"min-p 0.3 keeps above 0.12", OPTIONS(0, 1, 0.3f, 1), {0, 0.4, 0, 0.3, 0, 0.15}},
    {"min-p 1 keeps the best", OPTIONS(0, 1, 1, 1), {0, 1, 0, 0, 0, 0}},
    {"min-p does not see the temperature", OPTIONS(0, 1, 0.3f, 2), {0, 0.63246, 0, 0.54772, 0, 0.3873}},
    {"all together", OPTIONS(4, 0.95f, 0.5f, 0.5f), {0, 0.16, 0, 0.09, 0, 0}},
};
/* clang-format on */

Test(sampler, draws_in_proportion) {
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        double chi = chi_square(CASES[i].options, CASES[i].expected);
        bool fits = chi <= 35.9;
        cr_expect(fits, "%s: chi-square %g", CASES[i].what, chi);
    }
}

/* The mutant of that test: shares that are off by a little must fail it. */
Test(sampler, chi_square_notices_wrong_shares) {
    fd_sampler_options options = OPTIONS(0, 1, 0, 1);
    static const double tilted[N] = {0.12, 0.38, 0, 0.3, 0.05, 0.15};
    static const double missing[N] = {0.1, 0.4, 0, 0.3, 0, 0.15};
    cr_expect(chi_square(options, tilted) > 35.9);
    cr_expect(chi_square(options, missing) > 35.9);
}

Test(sampler, repeated_tokens_are_penalised_once) {
    /* clang-format off */
    static const struct {
        const char *what;
        float penalty;
        int32_t last, n;
        int32_t history[4];
        int32_t expected;
    } cases[] = {
        {"off", 1, -1, 4, {1, 1, 1, 1}, 1},
        {"positive logits are divided", 2, -1, 1, {1}, 3},          /* 2.0 → 1.0, below 1.5 */
        {"once, however often it stands there", 1.3f, -1, 4, {1, 1, 1, 1}, 1}, /* 2.0 → 1.538 */
        {"only the last ones count", 2, 2, 3, {1, 0, 0}, 1},
        {"none of them with 0", 2, 0, 3, {1, 1, 1}, 1},
        {"a window longer than the history", 2, 99, 1, {1}, 3},
    };
    /* clang-format on */
    static const float L[N] = {-1.0f, 2.0f, -INFINITY, 1.5f, 1.2f, -2.5f};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fd_sampler_options options = fd_sampler_defaults();
        options.repeat_penalty = cases[i].penalty;
        options.repeat_last = cases[i].last;
        fd_sampler *sampler = make(options, N);
        cr_expect(sample(sampler, L, cases[i].history, cases[i].n) == cases[i].expected, "%s", cases[i].what);
        cr_expect(sample(sampler, L, NULL, 0) == 1, "%s: the penalty outlives the call", cases[i].what);
    }
    /* negative logits are multiplied: -1 becomes -2 and falls below -1.5 */
    static const float below_zero[3] = {-1, -1.5f, -INFINITY};
    static const int32_t first = 0;
    fd_sampler_options options = fd_sampler_defaults();
    options.repeat_penalty = 2;
    fd_sampler *sampler = make(options, 3);
    cr_expect(eq(i32, sample(sampler, below_zero, &first, 1), 1));
    cr_expect(eq(i32, sample(sampler, below_zero, NULL, 0), 0));
}

Test(sampler, greedy_takes_the_best_and_of_equals_the_lowest_id) {
    /* clang-format off */
    static const struct {
        float logits[4];
        int32_t expected;
    } cases[] = {
        {{1, 2, 2, 0}, 1},   {{5, 5, 5, 5}, 0},          {{-INFINITY, -3, -2, -2}, 2},
        {{-0.0f, 0, 0, -1}, 0}, {{-1e38f, -3e38f, -INFINITY, -1e38f}, 0}, {{0, 0, 0, 1e-40f}, 3},
    };
    /* clang-format on */
    fd_sampler *sampler = make(fd_sampler_defaults(), 4);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_expect(sample(sampler, cases[i].logits, NULL, 0) == cases[i].expected, "case %zu", i);
}

/* The cut of top-k and top-p runs between equal logits: the lower ids stay. */
Test(sampler, ties_at_a_cut_go_to_the_lowest_ids) {
    static const float equal[N] = {1, 1, 1, 1, 1, 1};
    static const fd_sampler_options cuts[] = {OPTIONS(2, 1, 0, 1), OPTIONS(0, 0.33f, 0, 1)};
    for (int k = 0; k < 2; k++) {
        fd_sampler *sampler = make(cuts[k], N);
        bool seen[N] = {false};
        for (int i = 0; i < 200; i++) seen[sample(sampler, equal, NULL, 0)] = true;
        for (int i = 0; i < N; i++) cr_expect(seen[i] == (i < 2), "cut %d, id %d", k, i);
    }
}

/* Draws made elsewhere are skipped: the next one is the same. */
Test(sampler, skipped_draws_are_drawn_by_others) {
    float logits[N];
    fill_logits(logits);
    fd_sampler_options options = OPTIONS(0, 1, 0, 1);
    fd_sampler *all = make(options, N), *skips = make(options, N);
    for (int i = 0; i < 30; i++) {
        int32_t token = sample(all, logits, NULL, 0);
        if (i % 3 == 2)
            cr_expect(eq(i32, sample(skips, logits, NULL, 0), token));
        else
            fd_sampler_skip(skips, 1);
    }
}

Test(sampler, the_seed_decides_everything) {
    float logits[N];
    fill_logits(logits);
    int32_t sequences[3][64];
    for (int k = 0; k < 3; k++) {
        fd_sampler_options options = OPTIONS(0, 0.99f, 0, 1);
        options.seed = k < 2 ? 7 : 8;
        fd_sampler *sampler = make(options, N);
        for (int i = 0; i < 64; i++) sequences[k][i] = sample(sampler, logits, NULL, 0);
    }
    cr_expect(memcmp(sequences[0], sequences[1], sizeof sequences[0]) == 0);
    cr_expect(memcmp(sequences[0], sequences[2], sizeof sequences[0]) != 0);
}

/* SplitMix64 of seed 0 begins e220a8397b1dcdaf 6e789e6aa1b965f4 06c45d188009454f (the published test values): over 256
 * equal logits each draw shows the top byte. */
Test(sampler, the_generator_is_splitmix64) {
    static float equal[256];
    fd_sampler_options options = OPTIONS(0, 1, 0, 1);
    options.seed = 0;
    fd_sampler *sampler = make(options, 256);
    static const int32_t expected[] = {0xe2, 0x6e, 0x06};
    for (int i = 0; i < 3; i++) cr_expect(eq(i32, sample(sampler, equal, NULL, 0), expected[i]));
}

Test(sampler, a_cold_temperature_is_greedy) {
    float logits[N];
    fill_logits(logits);
    fd_sampler_options options = OPTIONS(0, 1, 0, 1e-40f);
    fd_sampler *sampler = make(options, N);
    for (int i = 0; i < 100; i++) cr_expect(eq(i32, sample(sampler, logits, NULL, 0), 1));
}

Test(sampler, unusable_logits_are_errors_that_name_the_id) {
    /* clang-format off */
    static const struct {
        float logits[4];
        float penalty;
        int32_t history;
        const char *message;
    } cases[] = {
        {{0, 1, NAN, 3}, 1, 0, "logit of id 2: found NaN"},
        {{-NAN, 1, 2, 3}, 1, 0, "logit of id 0: found NaN"},
        {{0, 1, 2, INFINITY}, 1, 0, "logit of id 3: found +inf"},
        {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, 1, 0, "all 4 ids"},
        {{0, 3e38f, 0, 0}, 0.5f, 1, "logit of id 1: found +inf after repeat-penalty 0.5"},
        {{0, 0, 0, 0}, 2, 4, "found id 4"},
        {{0, 0, 0, 0}, 2, -1, "found id -1"},
    };
    /* clang-format on */
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            fd_sampler_options options = fd_sampler_defaults();
            options.temperature = (float)t;
            options.repeat_penalty = cases[i].penalty;
            fd_sampler *sampler = make(options, 4);
            int32_t token = 5;
            fd_error err = {0};
            cr_expect(fd_sample(sampler, cases[i].logits, &cases[i].history, 1, &token, &err) == FD_ERR_INPUT,
                      "case %zu", i);
            cr_expect(strstr(err.message, cases[i].message) != NULL, "case %zu: %s", i, err.message);
            cr_expect(eq(i32, token, -1));
        }
}

Test(sampler, options_out_of_range_are_refused_by_name) {
    /* clang-format off */
    static const struct {
        fd_sampler_options options;
        const char *name; /* NULL: fine */
    } cases[] = {
        {OPTIONS(0, 1, 0, 1), NULL},           {OPTIONS(0, 1, 0, -0.1f), "temperature"},
        {OPTIONS(0, 1, 0, NAN), "temperature"}, {OPTIONS(0, 1, 0, INFINITY), "temperature"},
        {OPTIONS(-1, 1, 0, 1), "top-k"},       {OPTIONS(0, 0, 0, 1), "top-p"},
        {OPTIONS(0, 1.01f, 0, 1), "top-p"},    {OPTIONS(0, NAN, 0, 1), "top-p"},
        {OPTIONS(0, 1, -0.1f, 1), "min-p"},    {OPTIONS(0, 1, 1.01f, 1), "min-p"},
        {OPTIONS(0, 1, NAN, 1), "min-p"},
        {{.temperature = 1, .top_p = 1, .repeat_penalty = 0}, "repeat-penalty"},
        {{.temperature = 1, .top_p = 1, .repeat_penalty = NAN}, "repeat-penalty"},
        {{.temperature = 1, .top_p = 1, .repeat_penalty = 1, .repeat_last = -2}, "repeat-last"},
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fd_error err = {0};
        fd_code code = fd_sampler_check(&cases[i].options, &err);
        cr_expect(code == (cases[i].name ? FD_ERR_INPUT : FD_OK), "case %zu: %s", i, err.message);
        if (cases[i].name)
            cr_expect(strncmp(err.message, cases[i].name, strlen(cases[i].name)) == 0, "case %zu: %s", i, err.message);
    }
    fd_sampler_options defaults = fd_sampler_defaults();
    fd_error err = {0};
    cr_expect(fd_sampler_check(&defaults, &err) == FD_OK);
}

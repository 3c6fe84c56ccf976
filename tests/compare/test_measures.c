#include <criterion/criterion.h>
#include <math.h>

#include "compare/measure/measure_logits.h"
#include "compare/measure/measures.h"

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-12 * fmax(1, fabs(b));
}

Test(measures, kl_divergence_and_shares_are_those_of_the_formula) {
    /* p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4), whatever is added to all logits */
    const double p[] = {log(2), 0, 0}, q[] = {7, 7 + log(2), 7};
    fd_logits_measure m = {0};
    fd_measure_logits_row(p, q, 3, &m);
    cr_assert(m.known);
    cr_expect(near(m.kl, 0.25 * log(2)), "%g", m.kl);
    cr_expect(m.top[0][0].token == 0 && m.top[1][0].token == 1);
    cr_expect(near(m.top[0][0].probability, 0.5));
    cr_expect(near(m.candidate_share, 0.25));
    cr_expect_eq(m.candidate_rank, 2);
    cr_expect_eq(m.top[0][3].token, -1, "three tokens have no fourth");
    fd_measure_logits_row(p, p, 3, &m);
    cr_expect(m.kl >= 0 && m.kl < 1e-15);
}

Test(measures, a_nan_is_no_distribution) {
    const double p[] = {0, 1}, q[] = {0, NAN};
    fd_logits_measure m = {0};
    fd_measure_logits_row(p, q, 2, &m);
    cr_expect(!m.known);
    fd_measure_logits_row(q, p, 2, &m);
    cr_expect(!m.known);
}

Test(measures, of_a_tie_the_lowest_id_is_the_best) {
    const double p[] = {0, 3, 3, 1, 2, -1, 3};
    fd_logits_measure m = {0};
    fd_measure_logits_row(p, p, 7, &m);
    static const int32_t best[] = {1, 2, 6, 4, 3};
    for (int i = 0; i < FD_MEASURE_TOP; i++) cr_expect_eq(m.top[0][i].token, best[i]);
}

Test(measures, nmse_and_cosine) {
    fd_node_measure m = {.n_pos = 1, .error2 = 2, .reference2 = 8, .candidate2 = 2, .product = 4};
    cr_expect(near(fd_measure_nmse(&m), 0.25));
    cr_expect(near(fd_measure_cosine(&m), 1));
    m.reference2 = 0;
    cr_expect(isinf(fd_measure_nmse(&m)) && isnan(fd_measure_cosine(&m)), "nothing expected, something there");
    m.error2 = NAN;
    m.reference2 = 1;
    cr_expect(isnan(fd_measure_nmse(&m)));
    m.n_pos = 0;
    cr_expect(isnan(fd_measure_nmse(&m)) && isnan(fd_measure_cosine(&m)));
}

Test(measures, logits_are_summed_over_the_positions_that_both_have) {
    fd_logits_measure at[3] = {{.known = true, .kl = 1, .candidate_share = 0.25},
                               {.known = false, .kl = 100},
                               {.known = true, .kl = 3, .candidate_share = 0.5}};
    for (int i = 0; i < 3; i++) {
        at[i].top[0][0] = (fd_token_share){7, 0.5};
        at[i].top[1][0] = (fd_token_share){i ? 7 : 8, 0.5};
    }
    fd_logits_summary s = fd_measure_logits(&(fd_measures){.n_pos = 3, .logits = at});
    cr_expect_eq(s.n_pos, 2);
    cr_expect_eq(s.n_same_best, 1);
    cr_expect(near(s.mean_kl, 2) && near(s.largest_kl, 3));
    cr_expect_eq(s.largest_kl_pos, 2);
    cr_expect(near(s.rms_share, 0.25 / sqrt(2)));
    cr_expect_eq(fd_measure_logits(&(fd_measures){0}).n_pos, 0);
}

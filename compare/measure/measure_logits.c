#include "compare/measure/measure_logits.h"

#include <math.h>

/* log Σ exp(x); NaN where an x is. */
static double log_sum(const double *x, int64_t n) {
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i])) return NAN;
        if (x[i] > largest) largest = x[i];
    }
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - largest);
    return largest + log(sum);
}

static void find_top(const double *x, int64_t n, double norm, fd_token_share top[FD_MEASURE_TOP]) {
    for (int k = 0; k < FD_MEASURE_TOP; k++) top[k] = (fd_token_share){-1, 0};
    for (int64_t i = 0; i < n; i++) {
        int at = FD_MEASURE_TOP;
        while (at > 0 && (top[at - 1].token < 0 || x[i] > x[top[at - 1].token])) at--;
        if (at == FD_MEASURE_TOP) continue;
        for (int k = FD_MEASURE_TOP - 1; k > at; k--) top[k] = top[k - 1];
        top[at] = (fd_token_share){(int32_t)i, exp(x[i] - norm)};
    }
}

void fd_measure_logits_row(const double *reference, const double *candidate, int64_t n, fd_logits_measure *out) {
    double of_ref = log_sum(reference, n), of_cand = log_sum(candidate, n);
    if (!isfinite(of_ref) || !isfinite(of_cand)) return;
    *out = (fd_logits_measure){.known = true};
    find_top(reference, n, of_ref, out->top[0]);
    find_top(candidate, n, of_cand, out->top[1]);
    double best = candidate[out->top[0][0].token];
    out->candidate_share = exp(best - of_cand);
    out->candidate_rank = 1;
    for (int64_t i = 0; i < n; i++) {
        double log_p = reference[i] - of_ref, p = exp(log_p);
        if (p > 0) out->kl += p * (log_p - (candidate[i] - of_cand));
        out->candidate_rank += candidate[i] > best;
    }
    if (out->kl < 0) out->kl = 0; /* a rounding of the sum: the divergence itself never is */
}

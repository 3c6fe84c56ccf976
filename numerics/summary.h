/* What is said of a tensor's row beside its elements: statistics, attention's entropy, the best logits. Sums are
 * binary64 in an order of their own, so that a GPU, which adds in parallel, and scalar C get the same bits.
 *
 * Order of a sum: blocks of 1024 elements from element 0 on. Within a block 64 partial sums, partial j takes the
 * elements k ≡ j (mod 64) in rising k from +0, then neighbours pair up, six times; total = total + block, in rising
 * order from +0. What is not finite adds nothing to a mean: +0, which changes no sum that began at +0. */
#ifndef FD_NUMERICS_SUMMARY_H
#define FD_NUMERICS_SUMMARY_H

#include "numerics/contract.h"

enum { FD_SUM_BLOCK = 1024, FD_TOP_K = 10 };

/* Of one row. min … absmax are of the finite elements, NaN when there is none; n_… are counts. */
typedef struct fd_stats {
    double min, max, mean, rms, absmax;
    double n_nan, n_pos_inf, n_neg_inf, n_zero;
} fd_stats;

/* Of one row of logits. */
typedef struct fd_top_logits {
    float logit[FD_TOP_K]; /* best first, lowest id first among equals; NaN where the vocabulary is smaller */
    int32_t id[FD_TOP_K];  /* -1 likewise. A NaN logit: id[0] is the first one's id, all else -1 and NaN */
    float probability;     /* of the best: softmax over the whole vocabulary; NaN when the best logit is infinite */
    float range;           /* logit[0] - logit[9]; NaN where the vocabulary is smaller */
} fd_top_logits;

/* A sum in that order; {0} at first. */
typedef struct fd_sum64 {
    double partial[FD_PARTIALS], total;
    int64_t n;
} fd_sum64;

FD_HD void fd_sum64_close_block(fd_sum64 *s) {
    double *a = s->partial;
    for (int m = FD_PARTIALS; m > 1; m /= 2)
        for (int i = 0; i < m / 2; i++) a[i] = a[2 * i] + a[2 * i + 1];
    s->total = s->total + a[0];
    for (int i = 0; i < FD_PARTIALS; i++) a[i] = 0.0;
}

FD_HD void fd_sum64_add(fd_sum64 *s, double x) {
    const int j = (int)(s->n % FD_PARTIALS);
    s->partial[j] = s->partial[j] + x;
    if (++s->n % FD_SUM_BLOCK == 0) fd_sum64_close_block(s);
}

FD_HD double fd_sum64_end(fd_sum64 *s) {
    if (s->n % FD_SUM_BLOCK != 0) fd_sum64_close_block(s);
    return s->total;
}

/* A row's elements but for its sums. */
typedef struct fd_tally {
    double min, max;
    int64_t n_finite, n_nan, n_pos_inf, n_neg_inf, n_zero;
} fd_tally;

FD_HD fd_tally fd_tally_none(void) {
    fd_tally t = {INFINITY, -INFINITY, 0, 0, 0, 0, 0};
    return t;
}

/* Counts x; returns what it adds to the sum: x, or +0 when it is not finite. */
FD_HD double fd_tally_add(fd_tally *t, double x) {
    if (fabs(x) < INFINITY) {
        t->min = x < t->min ? x : t->min;
        t->max = x > t->max ? x : t->max;
        t->n_finite++;
        t->n_zero += x == 0.0;
        return x;
    }
    if (x != x)
        t->n_nan++;
    else if (x > 0.0)
        t->n_pos_inf++;
    else
        t->n_neg_inf++;
    return 0.0;
}

/* min and max of zeros are +0: which of them came first is nobody's order. */
FD_HD fd_stats fd_tally_end(const fd_tally *t, double sum, double squares) {
    const double n = (double)t->n_finite, low = fabs(t->min), high = fabs(t->max);
    const double none = fd_from_bits64(0x7ff8000000000000u);
    fd_stats s;
    s.min = n > 0.0 ? t->min + 0.0 : none;
    s.max = n > 0.0 ? t->max + 0.0 : none;
    s.mean = n > 0.0 ? sum / n : none;
    s.rms = n > 0.0 ? sqrt(squares / n) : none;
    s.absmax = n > 0.0 ? (low > high ? low : high) : none;
    s.n_nan = (double)t->n_nan;
    s.n_pos_inf = (double)t->n_pos_inf;
    s.n_neg_inf = (double)t->n_neg_inf;
    s.n_zero = (double)t->n_zero;
    return s;
}

/* p ln p, with 0 ln 0 = 0; NaN for a p that is no probability. fd_log64 wants a normal number, and below it p ln p is
 * under 1e-305: nothing in a sum of nats. */
FD_HD double fd_plogp(double p) {
    if (!(p >= 0.0 && p < INFINITY)) return fd_from_bits64(0x7ff8000000000000u);
    return p < 2.2250738585072014e-308 ? 0.0 : p * fd_log64(p);
}

/* e^x for x ≤ 0, a logit's share beside the best; below -700 it is nothing beside the best one's 1. */
FD_HD double fd_share64(double x) { return x < -700.0 ? 0.0 : fd_exp64(x); }

#endif

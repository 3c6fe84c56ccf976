/* What single elements of the node asked about show by themselves: all are one number; the largest are all as large; some are zero
 * here and there, and the others a little too large. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compare/explain/guesses.h"
#include "compare/explain/judged_rows.h"

/* Fewer may be so by chance. */
enum { FEWEST = 8, FEWEST_AT_LIMIT = 3 };

static fd_code try_constant(fd_trial *t, const fd_judged_rows *j, fd_error *err) {
    const float x = j->r->output[j->first * j->width];
    for (int64_t i = j->first * j->width; i < j->n * j->width; i++)
        if (j->r->output[i] < x || j->r->output[i] > x || !isfinite(j->r->output[i])) return FD_OK;
    const fd_hypothesis h = {.guess = FD_GUESS_OWN, .node = j->node->id, .which = FD_OWN_CONSTANT, .value = (double)x};
    return fabsf(x) > 0 && (j->n - j->first) * j->width >= FEWEST ? fd_trial_try(t, &h, err) : FD_OK;
}

/* ---- a clamp ---- */

/* A number that somebody wrote: two digits or fewer, which a value has by chance once in 10,000 times. */
static bool is_written(float x) {
    char digits[16];
    snprintf(digits, sizeof digits, "%.1e", (double)x);
    const float written = strtof(digits, NULL);
    return written >= x && written <= x;
}

/* No larger than what is largest there, which several are; or one, where it is a number that somebody wrote. */
static fd_code try_limit(fd_trial *t, const fd_judged_rows *j, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_CLAMP, .node = j->node->id};
    float most = 0, least = 0;
    int64_t n = 0;
    for (int64_t i = j->first * j->width; i < j->n * j->width; i++) {
        most = fmaxf(most, j->r->output[i]);
        least = fminf(least, j->r->output[i]);
    }
    for (int64_t i = j->first * j->width; i < j->n * j->width; i++)
        n += j->r->output[i] >= most || j->r->output[i] <= least;
    h.value = (double)fmaxf(most, -least);
    /* where hardly any is within the limits, as where all are one number, nothing was cut off */
    if (n < (is_written((float)h.value) ? 1 : FEWEST_AT_LIMIT) || (j->n - j->first) * j->width - n < FEWEST ||
        !(h.value > 0))
        return FD_OK;
    FD_TRY(fd_trial_try(t, &h, err));
    h.which = 1;
    h.value = (double)most;
    return fd_trial_fits(t) || !(h.value > 0) ? FD_OK : fd_trial_try(t, &h, err);
}

/* ---- dropout ---- */

/* Elements that are no zeros by right, and those of them that are: in all, behind another one, and below another one. */
typedef struct dropped {
    int64_t n, n_zero, n_behind, n_below;
    double factor; /* of the others */
} dropped;

static dropped count_dropped(const fd_judged_rows *j) {
    dropped d = {0};
    double cy = 0, yy = 0;
    for (int64_t i = j->first * j->width; i < j->n * j->width; i++) {
        const double c = (double)j->r->output[i], y = (double)j->plain->rows[i];
        if (!isfinite(y) || !(fabs(y) > (j->plain->tau ? 2 * j->plain->tau[i] : 0))) continue;
        d.n++;
        if (fabs(c) > 0) {
            cy += c * y;
            yy += y * y;
            continue;
        }
        d.n_zero++;
        d.n_behind += i % j->width > 0 && !(fabsf(j->r->output[i - 1]) > 0);
        d.n_below += i >= (j->first + 1) * j->width && !(fabsf(j->r->output[i - j->width]) > 0);
    }
    d.factor = yy > 0 ? cy / yy : 1;
    return d;
}

/* Standard deviations: a share that is further off is not the one that the factor makes good for. */
#define MOST_SIGMA 4.0

static bool is_share(int64_t n, int64_t of, double p) {
    return of > 0 && fabs((double)n / (double)of - p) <= MOST_SIGMA * sqrt(p * (1 - p) / (double)of);
}

/* Each by itself, so a zero has no more zeros beside it than another element has; and as many are zero as the factor says. */
static bool is_dropout(const dropped *d, double p) {
    return d->n_zero >= FEWEST && p > 0 && p < 1 && is_share(d->n_zero, d->n, p) &&
           (double)d->n_behind <= (double)d->n_zero * p + MOST_SIGMA * sqrt((double)d->n_zero * p) + 1 &&
           (double)d->n_below <= (double)d->n_zero * p + MOST_SIGMA * sqrt((double)d->n_zero * p) + 1;
}

static fd_code try_dropped(fd_trial *t, const fd_judged_rows *j, fd_error *err) {
    const dropped d = count_dropped(j);
    const double p = d.factor > 0 ? 1 - 1 / d.factor : 0;
    fd_hypothesis h = {.guess = FD_GUESS_OWN, .node = j->node->id, .which = FD_OWN_DROPPED};
    if (!is_dropout(&d, p)) return FD_OK;
    for (double unit = 20; unit <= 2000 && !fd_trial_fits(t); unit *= 10) {
        h.value = round(p * unit) / unit;
        if (h.value > 0 && h.value < 1) FD_TRY(fd_trial_try(t, &h, err));
    }
    h.value = p;
    return fd_trial_fits(t) ? FD_OK : fd_trial_try(t, &h, err);
}

fd_code fd_guess_elements(fd_trial *t, fd_error *err) {
    const fd_judged_rows j = fd_judged_rows_of(t);
    if (j.node->op == FD_OP_TOP_K || j.n <= j.first || j.width <= 0) return FD_OK;
    if (!j.node->over_kv) FD_TRY(try_constant(t, &j, err));
    if (!j.node->over_kv && !fd_trial_fits(t)) FD_TRY(try_limit(t, &j, err));
    return fd_trial_fits(t) || j.node->op == FD_OP_KV_WRITE ? FD_OK : try_dropped(t, &j, err);
}

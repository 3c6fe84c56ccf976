#include "compare/attribute/attribution_row.h"

#include <math.h>

/* Rounding errors that came with the inputs make P exceed the bound of one op nearly everywhere. Where an error was
 * introduced, P counts from this share of L on. */
#define WORTH_NAMING 0.05

typedef struct row_sums {
    double l2, p2, d2, r2;
    bool p_beyond;
    int32_t last_slice;
} row_sums;

static void add_element(fd_node_finding *f, row_sums *s, int64_t index, int32_t slice, double c, double y, double tau,
                        double r) {
    double z = fd_bound_z(c, y, tau);
    f->n_element++;
    if (!(z <= 1)) {
        f->n_beyond++;
        if (s->last_slice != slice) f->n_slice_beyond++;
        s->last_slice = slice;
        f->n_nan_new += !isfinite(c) && isfinite(y);
    }
    /* a NaN or Inf that came about here ranks before any number, however far off */
    bool fresh = !isfinite(c) && isfinite(y), fresh_before = !isfinite(f->candidate) && isfinite(f->replayed);
    if (f->worst < 0 || (fresh && !fresh_before) || (fresh == fresh_before && !(z <= f->z))) {
        f->z = z;
        f->worst = index;
        f->candidate = c;
        f->replayed = y;
        f->tau = tau;
        f->reference = r;
    }
    if (isfinite(c) && isfinite(y)) s->l2 += (c - y) * (c - y);
    if (!f->has_reference) return;
    s->p_beyond |= !(fd_bound_z(r, y, tau) <= 1);
    if (isfinite(y) && isfinite(r)) s->p2 += (y - r) * (y - r);
    if (isfinite(c) && isfinite(r)) {
        s->d2 += (c - r) * (c - r);
        s->r2 += r * r;
    }
}

bool fd_row_is_inconclusive(const fd_attribution_row *row, const fd_node_finding *f) {
    double tau = 0, y = 0;
    if (row->span_first == row->node->id || f->n_beyond > 0) return false;
    /* τ of an id says that the margin is small, not how large an error may be */
    if (row->node->op == FD_OP_TOP_K) return false;
    for (int64_t i = 0; i < row->stride; i++) {
        if (!isfinite(row->replayed[i])) continue;
        tau += row->tau[i] * row->tau[i];
        y += row->replayed[i] * row->replayed[i];
    }
    return !(sqrt(tau) <= FD_INCONCLUSIVE_SPAN * sqrt(y));
}

fd_node_finding fd_attribute_row(const fd_attribution_row *row, double *growth) {
    const fd_node *node = row->node;
    int64_t slice = node->over_kv ? row->n_kv : node->n_dim == 2 ? node->shape[1] : row->stride;
    row_sums s = {.last_slice = -1};
    fd_node_finding f = {.node = node->id,
                         .pos = row->pos,
                         .step = row->step,
                         .worst = -1,
                         .reference = NAN,
                         .has_reference = row->reference != NULL,
                         .span_first = row->span_first};
    int64_t seen = node->over_kv && row->pos + 1 < slice ? row->pos + 1 : slice; /* the rest is padding */
    for (int64_t head = 0; head * slice < row->stride; head++)
        for (int64_t at = 0; at < seen && head * slice + at < row->stride; at++) {
            int64_t i = head * slice + at;
            add_element(&f, &s, head * seen + at, (int32_t)head, row->candidate[i], row->replayed[i], row->tau[i],
                        row->reference ? row->reference[i] : NAN);
        }
    double l = sqrt(s.l2), p = sqrt(s.p2);
    bool introduced = f.n_beyond > 0, both = s.p_beyond && !(p < WORTH_NAMING * l);
    f.finding =
        introduced ? (both ? FD_FOUND_BOTH : FD_FOUND_INTRODUCED) : (s.p_beyond ? FD_FOUND_INHERITED : FD_FOUND_NOISE);
    if (f.has_reference && l + p > 0) {
        f.introduced = l / (l + p);
        f.propagated = p / (l + p);
    }
    if (f.n_nan_new > 0) f.introduced = 1, f.propagated = 0; /* no arithmetic shares a NaN out */
    if (growth) {
        growth[0] += s.d2;
        growth[1] += s.r2;
    }
    return f;
}

bool fd_is_unattributable(const fd_attribution_options *options, int32_t node, int32_t span_first) {
    for (int32_t i = span_first; options->unjudged && i <= node; i++)
        if (options->unjudged[i]) return true;
    return false;
}

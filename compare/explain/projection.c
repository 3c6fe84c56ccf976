#include "compare/explain/projection.h"

#include <math.h>

/* Standard errors from 0. */
#define SHOWN 10.0

enum { FEWEST_ROWS = 4 };

/* Few rows know their own spread badly: what Student's t, with a degree of freedom less than rows, is beyond once in 10^5, over SHOWN.
 * Eight rows and more are beyond SHOWN less often. */
static double student(int32_t n_row) {
    static const double beyond[] = {47.9, 23.3, 15.6, 12.0};
    int32_t i = n_row - FEWEST_ROWS;
    return i < (int32_t)(sizeof beyond / sizeof *beyond) ? beyond[i < 0 ? 0 : i] / SHOWN : 1;
}

void fd_projection_add(fd_projection *to, const fd_projection *from) {
    if (from->largest > to->largest) {
        to->largest = from->largest;
        to->pos = from->pos;
        to->element = from->element;
        to->candidate = from->candidate;
        to->sound = from->sound;
        to->tau = from->tau;
    }
    to->rd += from->rd;
    to->dd += from->dd;
    to->rr += from->rr;
    to->rd_rd += from->rd_rd;
    to->rd_dd += from->rd_dd;
    to->dd_dd += from->dd_dd;
    to->rr_d2 += from->rr_d2;
    to->r_d3 += from->r_d3;
    to->d4 += from->d4;
    to->n_row += from->n_row;
}

fd_slope fd_projection_slope_beyond(const fd_projection *p, double shown, double aside) {
    fd_slope s = {.value = p->rd / p->dd};
    double n = p->n_row, b = s.value;
    double by_rows = (p->rd_rd - 2 * b * p->rd_dd + b * b * p->dd_dd) * n / (n - 1);
    double by_elements = p->rr_d2 - 2 * b * p->r_d3 + b * b * p->d4;
    s.error = sqrt(fmax(fmax(by_rows, by_elements), 0)) / p->dd;
    double of_rows = student(p->n_row) * sqrt(fmax(by_rows, 0)) / p->dd;
    s.shown = p->n_row >= FEWEST_ROWS && p->dd > 0 && isfinite(b) && isfinite(s.error) &&
              fabs(b - 1) <= aside + 2 * s.error && b >= shown * s.error && b >= shown * of_rows;
    return s;
}

fd_slope fd_projection_slope(const fd_projection *p) {
    return fd_projection_slope_beyond(p, SHOWN, FD_SLOPE_ASIDE);
}

bool fd_slope_is_near(const fd_slope *slope, double aside) {
    return fabs(slope->value - 1) <= aside + slope->error;
}

double fd_projection_gain(const fd_projection *p) {
    return p->rr > 0 ? (2 * p->rd - p->dd) / p->rr : 0;
}

void fd_projection_add_row(const fd_trial_rows *rows, const fd_variant *bug, int32_t row, double least,
                           fd_projection *to) {
    const fd_explain_request *r = rows->request;
    int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv);
    fd_projection own = {.n_row = 1};
    for (int64_t k = 0; k < stride; k++) {
        int64_t i = row * stride + k;
        double tau = rows->plain.tau[i], sound = (double)rows->plain.rows[i], c = (double)r->output[i];
        double d = ((double)bug->rows[i] - sound) / tau, x = (c - sound) / tau;
        if (r->args.node->over_kv && k % r->args.n_kv > r->args.pos0 + row) continue;
        if (!(fabs(d) * tau > least * fabs(sound))) continue;
        if (!(tau > 0) || !isfinite(tau) || !isfinite(d)) continue;
        /* a row that is not finite where the bug's is: x is NaN or Inf, and so is the slope */
        own.rd += x * d;
        own.dd += d * d;
        own.rr += x * x;
        own.rr_d2 += x * x * d * d;
        own.r_d3 += x * d * d * d;
        own.d4 += d * d * d * d;
        if (!(fabs(d) > own.largest)) continue;
        own.largest = fabs(d);
        own.pos = r->args.pos0 + row;
        own.element = k;
        own.candidate = c;
        own.sound = sound;
        own.tau = tau;
    }
    if (!(own.dd > 0)) return;
    own.rd_rd = own.rd * own.rd;
    own.rd_dd = own.rd * own.dd;
    own.dd_dd = own.dd * own.dd;
    fd_projection_add(to, &own);
}

/* On the way; in standard errors (with seven degrees of freedom chance is beyond six once in a thousand, and the other was as near before);
 * and of squares. */
#define AT_THE_FIRST   0.25
#define FAR_FROM_OTHER 6.0
#define NEXT_TO_NONE   1e-8
enum { FEWEST_TO_TELL = 8 };

void fd_projection_tell_apart(const fd_trial_rows *from, const fd_variant *other, double size, bool *apart,
                              bool *same) {
    const fd_explain_request *r = from->request;
    fd_projection sum = {0};
    for (int32_t row = r->n_unjudged; row < r->args.n_pos && other->state == FD_VARIANT_COMPUTED; row++)
        fd_projection_add_row(from, other, row, 0, &sum);
    const fd_slope way = fd_projection_slope(&sum);
    *same = other->state == FD_VARIANT_COMPUTED && sum.dd <= NEXT_TO_NONE * size;
    *apart = sum.n_row >= FEWEST_TO_TELL && fabs(way.value) <= AT_THE_FIRST &&
             1 - way.value >= FAR_FROM_OTHER * way.error && !*same;
}

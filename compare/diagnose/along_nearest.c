#include "compare/diagnose/along_nearest.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/diagnose/below_bounds_internal.h"
#include "compare/diagnose/suspects.h"
#include "compare/explain/simple_numbers.h"
#include "compare/explain/solve.h"

/* Of the squares that are left: of two thousand that are tried, the luckiest took less than a tenth of what roundings leave. */
#define LEAST_GAIN 0.5
/* Standard errors of the slope from 0; and how far from 1 it may be: a number near the engine's shows the bug, too, and is no name. */
#define SHOWN 10.0
#define ASIDE 0.25
/* Another that takes so much less away is told from it, and one that takes as much to a thousandth is the same computation; a simple number
 * that takes hardly less stands for one that was fitted. */
#define APART       0.05
#define THE_SAME    1e-3
#define HARDLY_LESS 0.01
/* Gives the same rows: a tile of sixteen keys in a prompt of eleven is no mask at all. */
#define THE_SAME_ROWS 1e-9
/* Of the values' size, what the named bug may leave: an engine's own int8 blocks leave a hundredth of the logits, 8-bit caches three times that. */
#define MOST_LEFT 0.03

typedef struct along {
    fd_hypothesis h;
    fd_projection sum;
    fd_slope slope;
    bool apart, same; /* told from the best one; the same computation */
    double gain;      /* < LEAST_GAIN: it is not shown */
    double left;      /* of the values' size */
} along;

typedef struct question {
    const fd_explanation *of;
    along at[FD_MAX_NEAREST];
    const along *best;
} question;

/* Roundings are what a class is; and what is fitted to every row, or to every row of a cache, goes along whatever is left. */
static bool may_be(const fd_hypothesis *h) {
    return !fd_is_of_class(h) && h->guess != FD_GUESS_ROUNDED && h->guess != FD_GUESS_OWN &&
           !fd_hypothesis_fits_cache(h);
}

void fd_leave_roundings_out(fd_explanation *e) {
    int32_t n = 0;
    for (int32_t i = 0; i < e->n_nearest; i++)
        if (may_be(&e->nearest[i].h)) e->nearest[n++] = e->nearest[i];
    e->n_nearest = n;
}

static double left_by(const fd_trial_rows *rows, const fd_variant *bug) {
    const fd_explain_request *r = rows->request;
    const int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv);
    double left = 0, size = 0;
    if (bug->state != FD_VARIANT_COMPUTED) return INFINITY;
    for (int64_t i = r->n_unjudged * stride; i < r->args.n_pos * stride; i++) {
        const double c = (double)r->output[i], off = c - (double)bug->rows[i];
        left += off * off;
        size += c * c;
    }
    return sqrt(left / size);
}

static fd_code weigh(const fd_trial_rows *rows, along *a, fd_error *err) {
    const fd_explain_request *r = rows->request;
    fd_variant bug;
    a->sum = (fd_projection){0};
    a->gain = 0;
    FD_TRY(fd_evaluate(rows->bench, &a->h, r->args.node->id, false, &bug, err));
    for (int32_t row = r->n_unjudged; row < r->args.n_pos && bug.state == FD_VARIANT_COMPUTED; row++)
        fd_projection_add_row(rows, &bug, row, 0, &a->sum);
    a->left = left_by(rows, &bug);
    fd_variant_free(&bug);
    a->slope = fd_projection_slope_beyond(&a->sum, SHOWN, ASIDE);
    if (a->slope.shown) a->gain = fd_projection_gain(&a->sum);
    return FD_OK;
}

/* Of the numbers that a fitted one may stand for the first that does as well. */
static fd_code weigh_numbers(const fd_trial_rows *rows, along *a, fd_error *err) {
    double simple[FD_MOST_SIMPLE];
    FD_TRY(weigh(rows, a, err));
    if (a->gain >= LEAST_GAIN && (a->h.guess == FD_GUESS_FACTOR || a->h.guess == FD_GUESS_INPUT_FACTOR)) {
        along further = {.h = a->h}; /* it was solved for on few rows */
        further.h.value = 1 + (a->h.value - 1) * a->slope.value;
        FD_TRY(weigh(rows, &further, err));
        if (further.gain > a->gain) *a = further;
    }
    const int n = fd_solve_has_number(&a->h) && a->gain >= LEAST_GAIN ? fd_solve_simple(a->h.value, simple) : 0;
    for (int i = 0; i < n; i++) {
        along other = {.h = a->h};
        other.h.value = simple[i];
        FD_TRY(weigh(rows, &other, err));
        if (!(other.gain >= a->gain - HARDLY_LESS)) continue;
        *a = other;
        return FD_OK;
    }
    return FD_OK;
}

/* fd_diagnose_look_fn */
static fd_code look(void *user, const fd_diagnose_options *options, const fd_explain_request *r, fd_error *err) {
    question *q = user;
    fd_trial_rows rows = {0};
    (void)options;
    fd_code code = fd_trial_rows_open(r, &rows, err);
    const bool known = code == FD_OK && rows.plain.state == FD_VARIANT_COMPUTED && rows.plain.tau;
    for (int32_t i = 0; i < q->of->n_nearest && known && code == FD_OK; i++) {
        q->at[i].h = q->of->nearest[i].h;
        code = weigh_numbers(&rows, &q->at[i], err);
    }
    fd_trial_rows_close(&rows);
    return code;
}

/* Is another one refuted, or the same computation, where the best is the bug? */
static fd_code tell_from_best(const fd_trial_rows *rows, const fd_variant *best, double size, along *a, fd_error *err) {
    fd_trial_rows from_best = *rows;
    fd_variant other;
    FD_TRY(fd_evaluate(rows->bench, &a->h, rows->request->args.node->id, false, &other, err));
    from_best.plain.rows = best->rows;
    fd_projection_tell_apart(&from_best, &other, size, &a->apart, &a->same);
    fd_variant_free(&other);
    return FD_OK;
}

/* fd_diagnose_look_fn */
static fd_code look_from_best(void *user, const fd_diagnose_options *options, const fd_explain_request *r,
                              fd_error *err) {
    question *q = user;
    fd_trial_rows rows = {0};
    fd_variant best = {0};
    (void)options;
    fd_code code = fd_trial_rows_open(r, &rows, err);
    if (code == FD_OK && rows.plain.state == FD_VARIANT_COMPUTED && rows.plain.tau)
        code = fd_evaluate(rows.bench, &q->best->h, r->args.node->id, false, &best, err);
    for (int32_t i = 0; i < q->of->n_nearest && code == FD_OK && best.state == FD_VARIANT_COMPUTED; i++)
        if (&q->at[i] != q->best) code = tell_from_best(&rows, &best, q->best->sum.dd, &q->at[i], err);
    fd_variant_free(&best);
    fd_trial_rows_close(&rows);
    return code;
}

static bool is_within_a_layer(const fd_node *nodes, const fd_node_finding *f) {
    int32_t layer = -1;
    for (int32_t i = f->span_first; i <= f->node; i++) {
        if (layer >= 0 && nodes[i].layer >= 0 && nodes[i].layer != layer) return false;
        if (nodes[i].layer >= 0) layer = nodes[i].layer;
    }
    return true;
}

static bool is_row_of_table(const along *a) {
    return a->h.guess == FD_GUESS_FAULT;
}

static bool has_its_size(const along *a) {
    return fabs(a->slope.value - 1) <= FD_SLOPE_ASIDE + 2 * a->slope.error && a->left <= MOST_LEFT;
}

/* A number that was fitted may take a little more away than the bug that it is near to. */
static const along *best_of(const question *q) {
    const along *best = &q->at[0], *row = NULL;
    for (int32_t i = 0; i < q->of->n_nearest; i++) {
        const along *a = &q->at[i];
        if (a->gain > best->gain) best = a;
        if (is_row_of_table(a) && has_its_size(a) && !(row && row->gain >= a->gain)) row = a;
    }
    return row && fd_solve_has_number(&best->h) && row->gain >= best->gain - HARDLY_LESS ? row : best;
}

/* Can the rows not tell it from the best one? */
static bool is_as_near(const along *a, const along *b) {
    const bool same_name = strcmp(fd_hypothesis_name(&a->h), fd_hypothesis_name(&b->h)) == 0;
    if (a == b || !(a->gain >= b->gain - APART) || (same_name && a->gain >= b->gain - THE_SAME)) return false;
    return !(is_row_of_table(b) && has_its_size(b) && fd_solve_has_number(&a->h) && a->gain <= b->gain + HARDLY_LESS);
}

static bool gives_same_rows(const along *a, const along *b) {
    return fabs(a->gain - b->gain) <= THE_SAME_ROWS && fabs(a->left - b->left) <= THE_SAME_ROWS * b->left;
}

/* A fault at one of its nodes is another one's of that node alone, in words that are not true of the layer. */
static bool is_part_of_another(const along *a, const along *b) {
    return is_row_of_table(a) && is_row_of_table(b) && a->h.node >= 0 && b->h.node < 0 && gives_same_rows(a, b);
}

fd_code fd_explain_along_nearest(const fd_diagnose_options *ask, fd_explanation *e, fd_node_finding *where, bool *shown,
                                 fd_error *err) {
    question q = {.of = e};
    *shown = false;
    if (is_within_a_layer(ask->graph->nodes, ask->finding)) return FD_OK;
    fd_leave_roundings_out(e);
    FD_TRY(fd_diagnose_look(ask, look, &q, err));
    const along *b = best_of(&q);
    *shown = b->gain >= LEAST_GAIN;
    if (!*shown) return FD_OK;
    q.best = b;
    FD_TRY(fd_diagnose_look(ask, look_from_best, &q, err));
    e->named = true;
    e->why = FD_NAMED;
    e->slope = b->slope.value;
    e->slope_error = b->slope.error;
    e->slope_rows = b->sum.n_row;
    e->remaining[0] = fd_below_fit(ask->graph, &b->h, &b->sum);
    e->n_remaining = e->n_apart = 1;
    for (int32_t i = 0; i < e->n_nearest; i++) {
        if (q.at[i].apart || !is_as_near(&q.at[i], b) || is_part_of_another(&q.at[i], b)) continue;
        if (e->n_remaining < FD_MAX_REMAINING)
            e->remaining[e->n_remaining] = fd_below_fit(ask->graph, &q.at[i].h, &q.at[i].sum);
        e->n_remaining++;
        e->n_apart += !q.at[i].same;
    }
    *where = fd_below_finding(ask->graph, ask->trace, ask->finding->node, &b->sum, ask->finding->span_first);
    if (e->n_apart == 1 && has_its_size(b)) return FD_OK;
    e->named = false;
    e->why = e->n_apart > 1 ? FD_UNNAMED_SEVERAL_FIT : FD_UNNAMED_NONE_FITS;
    return FD_OK;
}

#include "compare/diagnose/earlier_layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compare/diagnose/below_bounds_internal.h"
#include "compare/hypothesis/parameters.h"

/* Of those that may be, each of which costs a layer's replay in every layer. */
enum { MOST_ASKED = 6 };

/* Standard errors from 0, of one layer that is one of several; and how much of a bug is nearer to all of it than to none. */
#define SHOWN_HERE 4.0
#define HALF       0.5

typedef struct look {
    const fd_explanation *e;
    int32_t n;                     /* explanations that are asked */
    fd_projection own[MOST_ASKED]; /* of the layer at hand */
} look;

/* What is fitted to the candidate's own values has their direction; roundings have none. */
static bool has_direction(const fd_explain_fit *fit) {
    const fd_guess g = fit->hypothesis.guess;
    return g != FD_GUESS_ROUNDED && g != FD_GUESS_OWN && g != FD_GUESS_COPY && g != FD_GUESS_BLOCKS &&
           !fd_hypothesis_fits_cache(&fit->hypothesis);
}

/* fd_diagnose_look_fn */
static fd_code look_along(void *user, const fd_diagnose_options *options, const fd_explain_request *request,
                          fd_error *err) {
    look *l = user;
    fd_trial_rows rows;
    (void)options;
    fd_code code = fd_trial_rows_open(request, &rows, err);
    bool possible = code == FD_OK && rows.plain.state == FD_VARIANT_COMPUTED && rows.plain.tau;
    for (int32_t k = 0; k < l->n && possible && code == FD_OK; k++) {
        fd_hypothesis h;
        fd_variant bug = {0};
        if (!fd_hypothesis_at(&l->e->remaining[k].hypothesis, request->args.graph, request->args.node, &h)) continue;
        code = fd_evaluate(rows.bench, &h, request->args.node->id, false, &bug, err);
        for (int32_t p = request->n_unjudged; p < request->args.n_pos && bug.state == FD_VARIANT_COMPUTED; p++)
            fd_projection_add_row(&rows, &bug, p, 0, &l->own[k]);
        fd_variant_free(&bug);
    }
    fd_trial_rows_close(&rows);
    return code;
}

static bool is_asked(const fd_diagnose_options *ask, const fd_attribution *of, int32_t i) {
    return of->z[i] >= 0 && fd_fault_same_kind(&ask->graph->nodes[i], &ask->graph->nodes[of->first.node]);
}

/* at [n_node][MOST_ASKED] */
static fd_code look_at_layers(const fd_diagnose_options *ask, const fd_attribution *of, const fd_explanation *e,
                              int32_t n, fd_projection (*at)[MOST_ASKED], fd_error *err) {
    for (int32_t i = 0; i <= of->first.node; i++) {
        look l = {.e = e, .n = n};
        if (!is_asked(ask, of, i)) continue;
        FD_TRY(fd_below_look_with(ask, i, look_along, &l, err));
        for (int32_t k = 0; k < n; k++) at[i][k] = l.own[k];
    }
    return FD_OK;
}

static fd_projection sum_of(const fd_diagnose_options *ask, const fd_attribution *of, int32_t k,
                            fd_projection (*at)[MOST_ASKED]) {
    fd_projection sum = {0};
    for (int32_t i = 0; i <= of->first.node; i++)
        if (is_asked(ask, of, i)) fd_projection_add(&sum, &at[i][k]);
    return sum;
}

/* Two digits: of what is fitted to a direction more are nobody's. */
static double simple(double x) {
    const double unit = pow(10, floor(log10(fabs(x))) - 1);
    return round(x / unit) * unit;
}

/* A number that was solved for in one layer goes in the bug's direction, and as far as that layer's bounds let it: all layers say how
 * far it is, of which the file's is 0. */
static bool refine(const fd_diagnose_options *ask, const fd_attribution *of, fd_explain_fit *fit, fd_slope slope) {
    fd_hypothesis *h = &fit->hypothesis;
    const fd_node *nodes = ask->graph->nodes;
    double file = 0;
    if (h->guess != FD_GUESS_PARAMETER || !(fabs(slope.value - 1) <= HALF) ||
        !(slope.value >= SHOWN_HERE * slope.error))
        return false;
    for (int32_t i = 0; i <= of->first.node; i++)
        if (nodes[i].op == fd_parameters[h->which].op) file = fd_parameter_of(&fd_parameters[h->which], &nodes[i]);
    if (!(file > 0) || !(h->value > 0)) return false;
    const double was = h->value;
    h->value = simple(file * pow(h->value / file, slope.value));
    fd_hypothesis_summary(h, ask->graph, fit->summary, sizeof fit->summary);
    return fabs(h->value - was) > 0;
}

typedef struct best {
    int32_t k, first; /* which, and the first node that shows it; k -1: none */
    bool shown[MOST_ASKED];
    double gain[MOST_ASKED]; /* what it takes away */
    fd_slope slope;
    fd_projection sum;
} best;

/* Two that take away the same cannot be told apart. Then a bug of the table is the name, or else a number of the file's. */
#define AS_MUCH 0.98

static int32_t rank(const fd_explain_fit *fit) {
    return fit->hypothesis.guess == FD_GUESS_FAULT ? 2 : fit->hypothesis.guess == FD_GUESS_PARAMETER;
}

/* The explanation that takes most away, of those that are shown in all these layers together and in one before the finding's. */
static best choose(const fd_diagnose_options *ask, const fd_attribution *of, const fd_explanation *asked, int32_t n,
                   fd_projection (*at)[MOST_ASKED]) {
    best b = {.k = -1};
    for (int32_t k = 0; k < n; k++) {
        const fd_projection sum = sum_of(ask, of, k, at);
        int32_t first = -1;
        for (int32_t i = 0; i <= of->first.node && first < 0; i++) {
            const fd_slope own = fd_projection_slope_beyond(&at[i][k], SHOWN_HERE, FD_SLOPE_ASIDE);
            if (is_asked(ask, of, i) && own.value >= HALF && own.value >= SHOWN_HERE * own.error) first = i;
        }
        const fd_slope slope = fd_projection_slope(&sum);
        b.gain[k] = 2 * sum.rd - sum.dd;
        b.shown[k] = slope.shown && first >= 0 && first < of->first.node;
        const bool as_much = b.k >= 0 && b.gain[k] >= AS_MUCH * b.gain[b.k] && b.gain[b.k] >= AS_MUCH * b.gain[k];
        const bool better =
            b.k < 0 || (as_much ? rank(&asked->remaining[k]) > rank(&asked->remaining[b.k]) : b.gain[k] > b.gain[b.k]);
        if (!b.shown[k] || !better) continue;
        b.k = k;
        b.first = first;
        b.slope = slope;
        b.sum = sum;
    }
    return b;
}

static fd_explain_fit at_node(const fd_explain_fit *fit, const fd_graph *graph, const fd_node *node) {
    fd_explain_fit out = *fit;
    fd_hypothesis there;
    if (!fd_hypothesis_at(&fit->hypothesis, graph, node, &there) || there.node < 0) return out;
    out.hypothesis = there;
    snprintf(out.at, sizeof out.at, "%s", graph->nodes[there.node].name);
    return out;
}

/* `asked`: what the sums are of. */
static void take(const fd_diagnose_options *ask, const fd_attribution *of, const best *b, const fd_explanation *asked,
                 int32_t n, fd_explanation *e) {
    const fd_node *node = &ask->graph->nodes[of->first.node];
    *e = (fd_explanation){.named = true, .layer = node->layer, .n_remaining = 1};
    snprintf(e->node, sizeof e->node, "%s", node->name);
    e->remaining[0] = at_node(&asked->remaining[b->k], ask->graph, node);
    for (int32_t k = 0; k < n; k++)
        if (k != b->k && b->shown[k] && b->gain[k] >= AS_MUCH * b->gain[b->k])
            e->remaining[e->n_remaining++] = at_node(&asked->remaining[k], ask->graph, node);
    e->slope = b->slope.value;
    e->slope_error = b->slope.error;
    e->slope_rows = b->sum.n_row;
}

bool fd_may_begin_earlier(const fd_diagnose_options *ask, const fd_attribution *of) {
    const bool has_room = !ask->numerics->exact && !fd_class_leaves_nothing(ask->numerics);
    return has_room && of->first.span_first != of->first.node && ask->graph->nodes[of->first.node].layer > 0;
}

fd_code fd_begin_at_earlier_layer(const fd_diagnose_options *ask, fd_attribution *of, fd_explanation *e,
                                  fd_error *err) {
    const fd_node_finding was = of->first;
    const int32_t n_left = e->named ? 1 : e->n_remaining < FD_MAX_REMAINING ? e->n_remaining : FD_MAX_REMAINING;
    fd_explanation asked = *e;
    int32_t n = 0;
    for (int32_t i = 0; i < n_left && n < MOST_ASKED; i++)
        if (has_direction(&e->remaining[i])) asked.remaining[n++] = e->remaining[i];
    if (n == 0 || !fd_may_begin_earlier(ask, of)) return FD_OK;
    fd_projection(*at)[MOST_ASKED] = calloc((size_t)was.node + 1, sizeof *at);
    if (!at) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    fd_code code = look_at_layers(ask, of, &asked, n, at, err);
    bool again = false;
    for (int32_t k = 0; k < n && code == FD_OK; k++) {
        const fd_projection sum = sum_of(ask, of, k, at);
        const fd_slope slope = fd_projection_slope(&sum);
        if (!slope.shown) again |= refine(ask, of, &asked.remaining[k], slope);
    }
    if (again && code == FD_OK) code = look_at_layers(ask, of, &asked, n, at, err);
    const best b = code == FD_OK ? choose(ask, of, &asked, n, at) : (best){.k = -1};
    if (b.k >= 0) {
        const fd_node *nodes = ask->graph->nodes;
        const int32_t span = fd_fault_in_layer(ask->graph, &nodes[was.span_first], nodes[b.first].layer);
        of->first =
            fd_below_finding(ask->graph, ask->trace, b.first, &at[b.first][b.k], span < 0 ? was.span_first : span);
        of->introduced[b.first] = of->first;
        of->next = was;
        take(ask, of, &b, &asked, n, e);
    }
    free(at);
    return code;
}

#include "compare/diagnose/below_bounds.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/describe.h"
#include "compare/diagnose/below_bounds_internal.h"
#include "compare/replay/in_order.h"

/* Standard errors from 0; of a node that is one of several where the bug shows. */
#define SHOWN      10.0
#define SHOWN_HERE 4.0

/* Nodes are looked at side by side, by two threads, for each has matrices in binary32 beside the model; with matrices of more
 * elements one after the other, for then all threads have enough to do in one. */
enum { MOST_THREADS = 2, LARGE = 1 << 22 };

/* Multiplications: about five seconds of one core. */
#define MOST_SPENT 0x1p32

/* In binary32: how much of what is left the bug has to take away. Where values fall to the other side of a step, and the class may
 * not be the engine's: GELU's quick form left a quarter, with a slope of 0.90, where K and V were in binary16 and the class has binary32. */
#define LEAST_GAIN          0.75
#define LEAST_GAIN_IN_STEPS 0.6

/* A choice of experts: rounding may have turned it, and then has a direction. A weighted sum of V, or it is one. A cache, in a class
 * of int8 blocks: one value in it that fell to the other side of a step moves all later rows alike. Another layer: then nothing shows the
 * class, whose roundings would have to be what the bug does not take away, and of several layers' bugs many go nearly the same way. */
enum { FOLLOWS_CHOICE = 1, FOLLOWS_MIX = 2, FOLLOWS_CACHE = 4, FOLLOWS_LAYER = 8 };

typedef struct search {
    fd_below_search below;
    const bool *uses_room; /* [n_node] as fd_attribution has it */
    uint8_t *
        follows; /* [n_node] FOLLOWS_*: computed from such a node through unrecorded ones; NULL: not asked for; owned */
    double spent;
    double aside; /* how far from 1 a slope may be */
    double least_gain;
    int32_t n_looked_at; /* nodes before this one */
} search;

static const fd_projection *of_node(const search *s, int32_t node, int32_t bug) {
    static const fd_projection nothing = {0};
    return s->below.at[node] ? &s->below.at[node][bug] : &nothing;
}

/* `shown`: standard errors from 0. */
static fd_slope slope_of(const search *s, const fd_projection *p, double shown) {
    fd_slope slope = fd_projection_slope_beyond(p, shown, s->aside);
    if (s->least_gain > 0) slope.shown &= fd_projection_gain(p) >= s->least_gain;
    return slope;
}

static bool of_kind(const search *s, int32_t node, int32_t kind) {
    return s->below.kind[node] == s->below.kind[kind];
}

/* One bug, shown in all nodes of a kind together (node -1) or in one. */
typedef struct shown {
    int32_t kind, node, bug;
    fd_slope slope;
    double gain;
} shown;

/* Of several that are shown the one that takes most of the errors away: Σ r² − Σ (r − d)². */
static void look_at(const search *s, shown *best, shown x, const fd_projection *p) {
    x.slope = slope_of(s, p, SHOWN);
    if (x.node >= 0) x.slope.shown &= fd_slope_is_near(&x.slope, s->aside);
    if (s->follows && (s->follows[x.kind] & (FOLLOWS_CACHE | FOLLOWS_LAYER)))
        x.slope.shown &= fd_projection_gain(p) >= LEAST_GAIN_IN_STEPS;
    x.gain = 2 * p->rd - p->dd;
    if (x.slope.shown && (best->bug < 0 || x.gain > best->gain)) *best = x;
}

/* Of a bug, over the nodes where `x` is shown. */
static fd_projection sum_of(const search *s, const shown *x, int32_t bug) {
    fd_projection all = {0};
    for (int32_t i = x->kind; i < s->below.graph->n_node; i++)
        if (s->below.at[i] && of_kind(s, i, x->kind) && (x->node < 0 || i == x->node))
            fd_projection_add(&all, of_node(s, i, bug));
    return all;
}

/* The kind that comes first in the graph and shows a bug: what comes after it may show it, too. In all layers, else in one.
 */
static shown find(const search *s) {
    for (int32_t kind = 0; kind < s->below.graph->n_node; kind++) {
        shown best = {.bug = -1};
        if (s->below.kind[kind] != kind) continue;
        for (int32_t f = 0; f < s->below.n_bug; f++) {
            shown everywhere = {.kind = kind, .node = -1, .bug = f};
            fd_projection all = sum_of(s, &everywhere, f);
            look_at(s, &best, everywhere, &all);
        }
        for (int32_t f = 0; f < s->below.n_bug && best.bug < 0; f++)
            for (int32_t i = kind; i < s->below.graph->n_node; i++)
                if (of_kind(s, i, kind))
                    look_at(s, &best, (shown){.kind = kind, .node = i, .bug = f}, of_node(s, i, f));
        if (best.bug >= 0) return best;
    }
    return (shown){.bug = -1};
}

fd_explain_fit fd_below_fit(const fd_graph *graph, const fd_hypothesis *h, const fd_projection *p) {
    fd_explain_fit fit = {.hypothesis = *h, .z = fabs(p->candidate - p->sound) / p->tau, .ulp = INFINITY};
    if (h->node >= 0) snprintf(fit.at, sizeof fit.at, "%s", graph->nodes[h->node].name);
    snprintf(fit.name, sizeof fit.name, "%s", fd_hypothesis_name(h));
    fd_hypothesis_summary(h, graph, fit.summary, sizeof fit.summary);
    return fit;
}

static fd_explain_fit fit_of(const search *s, int32_t bug, const fd_projection *p) {
    const fd_below_bug *b = &s->below.bugs[bug];
    fd_hypothesis h = {.guess = FD_GUESS_FAULT, .fault = b->fault, .node = b->node};
    h.layer = b->layer >= 0 ? b->layer : FD_ANY_LAYER;
    if (b->kind >= 0) snprintf(h.kind, sizeof h.kind, "%s", fd_fault_suffix(&s->below.graph->nodes[b->kind]));
    h.n_dim = b->n_dim;
    return fd_below_fit(s->below.graph, &h, p);
}

/* Others of the table whose slope is 1 within three standard errors cannot be told from it. */
static void list_others(const search *s, const shown *x, fd_explanation *out) {
    for (int32_t f = 0; f < s->below.n_bug; f++) {
        fd_projection p = sum_of(s, x, f);
        fd_slope slope = slope_of(s, &p, SHOWN);
        if (s->below.bugs[f].fault == s->below.bugs[x->bug].fault) continue;
        if (!slope.shown || !(fabs(slope.value - 1) <= 3 * slope.error)) continue;
        if (out->n_remaining < FD_MAX_REMAINING) out->remaining[out->n_remaining] = fit_of(s, f, &p);
        out->n_remaining++;
    }
}

static void explain(const search *s, const shown *x, const fd_node *node, fd_explanation *out) {
    fd_projection all = sum_of(s, x, x->bug);
    *out = (fd_explanation){.named = true, .layer = node->layer, .n_remaining = 1};
    snprintf(out->node, sizeof out->node, "%s", node->name);
    out->slope = x->slope.value;
    out->slope_error = x->slope.error;
    out->slope_rows = all.n_row;
    out->remaining[0] = fit_of(s, x->bug, &all);
    list_others(s, x, out);
    const int32_t fault = s->below.bugs[x->bug].fault, no_eps = fd_fault_find("eps_missing");
    if (fault == no_eps || strcmp(fd_fault_at(fault)->family, "norm") != 0) return;
    const fd_projection along = sum_of(s, x, no_eps);
    fd_below_or_eps(s->below.graph, node->id, &all, &along, out);
}

/* The findings, and the explanation. */
static fd_code describe(const search *s, const shown *x, fd_attribution *of, fd_explanation *out, fd_causes *causes,
                        fd_error *err) {
    const fd_graph *graph = s->below.graph;
    bool *layers = calloc((size_t)graph->hparams.n_layer + 1, sizeof *layers);
    int32_t first = -1, n = 0;
    if (!layers) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    for (int32_t i = x->kind; i < graph->n_node; i++) {
        const fd_projection *p = of_node(s, i, x->bug);
        if (!of_kind(s, i, x->kind) || (x->node >= 0 && i != x->node) || p->n_row == 0) continue;
        if (!slope_of(s, p, SHOWN_HERE).shown) continue;
        of->suspect[i] = fd_below_finding(graph, s->below.o->trace, i, p, i);
        if (graph->nodes[i].layer >= 0) layers[graph->nodes[i].layer] = true;
        if (first < 0) first = i;
        n++;
    }
    if (first >= 0) {
        explain(s, x, &graph->nodes[first], out);
        *causes = (fd_causes){.first.n_node = n};
        snprintf(causes->first.name, sizeof causes->first.name, "%s", out->remaining[0].name);
        snprintf(causes->first.summary, sizeof causes->first.summary, "%s", out->remaining[0].summary);
        snprintf(causes->first.node, sizeof causes->first.node, "%s", out->node);
        fd_layers_text(layers, graph->hparams.n_layer, causes->first.layers, sizeof causes->first.layers);
        fd_attribution_promote(graph, of, NULL);
    }
    free(layers);
    return FD_OK;
}

/* Roundings to steps are repeated, and then nothing is left, but for sums of V in 16 bits, and where values fell to the other side. */
static bool repeats_steps(const fd_numerics_class *class_) {
    return fd_class_leaves_nothing(class_) && fd_class_rounds_to_steps(class_);
}

static bool has_room(const fd_numerics_class *class_) {
    return !class_->exact && class_->u_out >= 0x1p-24;
}

static bool is_unrecorded(const search *s, int32_t i) {
    bool ignored = s->below.o->ignored && s->below.o->ignored[i];
    return ignored || !fd_trace_has_data(s->below.o->trace, s->below.graph->nodes[i].name);
}

static fd_code find_followers(search *s, fd_error *err) {
    const fd_node *nodes = s->below.graph->nodes;
    const bool blocks = s->below.o->numerics->q8_activations;
    s->follows = calloc((size_t)s->below.graph->n_node + 1, sizeof *s->follows);
    if (!s->follows) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    for (int32_t i = 0; i < s->below.graph->n_node; i++) {
        if (nodes[i].op == FD_OP_ATTN_MIX) s->follows[i] |= FOLLOWS_MIX;
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            int32_t in = nodes[i].input[k];
            if (in < 0 || !is_unrecorded(s, in)) continue;
            s->follows[i] |= s->follows[in];
            if (nodes[in].layer >= 0 && nodes[in].layer != nodes[i].layer) s->follows[i] |= FOLLOWS_LAYER;
            if (nodes[in].op == FD_OP_TOP_K) s->follows[i] |= FOLLOWS_CHOICE;
            if (nodes[in].op == FD_OP_KV_WRITE && blocks) s->follows[i] |= FOLLOWS_CACHE;
        }
    }
    return FD_OK;
}

/* fd_jobs.needless */
static bool is_needless(void *user, int32_t i) {
    const search *s = user;
    if (repeats_steps(s->below.o->numerics) && !(s->follows[i] & FOLLOWS_MIX) && !s->uses_room[i]) return true;
    return is_unrecorded(s, i) ||
           ((s->follows[i] & FOLLOWS_CHOICE) && !s->below.binary32); /* where little is left, none was turned */
}

/* fd_jobs.run */
static fd_code look_at_node(void *user, int32_t i, fd_error *err) {
    search *s = user;
    return fd_below_look(&s->below, i, err);
}

/* fd_jobs.take */
static bool take_node(void *user, int32_t i) {
    search *s = user;
    s->n_looked_at = i + 1;
    s->spent += s->below.cost[i];
    return s->spent < MOST_SPENT;
}

static int32_t threads_for(const fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        int32_t w = graph->nodes[i].op == FD_OP_MATMUL ? graph->nodes[i].weight[0] : -1;
        if (w >= 0 && graph->weights[w].n_row * graph->weights[w].n_col > LARGE) return 1;
    }
    return MOST_THREADS;
}

fd_code fd_find_below_bounds(const fd_diagnose_options *options, fd_attribution *of, fd_explanation *out,
                             fd_causes *causes, fd_error *err) {
    const fd_graph *graph = options->graph;
    search s = {.uses_room = of->uses_room};
    out->named = false;
    const bool steps = repeats_steps(options->numerics),
               in_sums_alone = steps && fd_class_has_room_in_mix(options->numerics);
    bool any_room = in_sums_alone || !steps;
    for (int32_t i = 0; i < graph->n_node; i++) any_room |= of->uses_room[i];
    if (!has_room(options->numerics) || of->found || !any_room) return FD_OK;
    const fd_jobs nodes = {0, graph->n_node, threads_for(graph), &s, is_needless, look_at_node, take_node};
    fd_code code = fd_below_open(options, &s.below, err);
    s.below.binary32 &= !steps;
    s.aside = steps ? FD_SLOPE_ASIDE_IN_SUMS : FD_SLOPE_ASIDE;
    s.least_gain = s.below.binary32 ? LEAST_GAIN : steps && !in_sums_alone ? LEAST_GAIN_IN_STEPS : 0;
    if (code == FD_OK) code = find_followers(&s, err);
    if (code == FD_OK) code = fd_run_in_order(&nodes, err);
    for (int32_t i = s.n_looked_at; i < graph->n_node && code == FD_OK; i++) {
        free(s.below.at[i]); /* looked at beyond the last, by another thread, for nothing */
        s.below.at[i] = NULL;
    }
    shown x = code == FD_OK ? find(&s) : (shown){.bug = -1};
    if (x.bug >= 0) code = describe(&s, &x, of, out, causes, err);
    fd_below_close(&s.below);
    free(s.follows);
    return code;
}

/* What the bug leaves of a finding beyond the bounds: no more than ten of these, or it is another one in the same direction. The slope is
 * known to within its error; and what goes in other directions is left, too (a variance for the mean of squares left 0.18 of the squares
 * beside a wrong eps, slope 0.98). */
static bool leaves_little(const search *s, const fd_node_finding *f, const shown *x) {
    const double along = f->z * fmax(x->slope.error, fabs(x->slope.value - 1)),
                 aside = 1 - fd_projection_gain(of_node(s, f->node, x->bug));
    return along <= 10 && f->z * f->z * aside <= 10 * 10;
}

fd_code fd_explain_by_slope(const fd_diagnose_options *options, fd_explanation *out, fd_error *err) {
    const fd_node_finding *f = options->finding;
    search s = {.aside = FD_SLOPE_ASIDE, .least_gain = LEAST_GAIN};
    shown best = {.bug = -1};
    const bool binary32 = fd_class_leaves_nothing(options->numerics) && !repeats_steps(options->numerics);
    if (!binary32 || !has_room(options->numerics) || f->span_first == f->node) return FD_OK;
    fd_code code = fd_below_open(options, &s.below, err);
    if (code == FD_OK) code = fd_below_look(&s.below, f->node, err);
    for (int32_t i = 0; i < s.below.n_bug && code == FD_OK; i++)
        look_at(&s, &best, (shown){.kind = f->node, .node = f->node, .bug = i}, of_node(&s, f->node, i));
    if (best.bug >= 0 && leaves_little(&s, f, &best)) explain(&s, &best, &options->graph->nodes[f->node], out);
    fd_below_close(&s.below);
    return code;
}

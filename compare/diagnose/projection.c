#include "compare/diagnose/projection.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/describe.h"
#include "compare/diagnose/trial.h"
#include "compare/replay/in_order.h"

/* Standard errors from 0; and how far from 1 a slope may be: a bound's formula, a bug's own roundings. */
#define SHOWN 10.0
#define ASIDE 0.25

/* Of a node that is one of several where the bug shows. */
#define SHOWN_HERE 4.0

enum { FEWEST_ROWS = 4 };

/* Nodes are looked at side by side, by two threads, for each has matrices in binary32 beside the model; with matrices of more
 * elements one after the other, for then all threads have enough to do in one. */
enum { MOST_THREADS = 2, LARGE = 1 << 22 };

/* Multiplications: about five seconds of one core. */
#define MOST_SPENT 0x1p32

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
    to->rd_rd += from->rd_rd;
    to->rd_dd += from->rd_dd;
    to->dd_dd += from->dd_dd;
    to->rr_d2 += from->rr_d2;
    to->r_d3 += from->r_d3;
    to->d4 += from->d4;
    to->n_row += from->n_row;
}

static fd_slope slope_beyond(const fd_projection *p, double shown) {
    fd_slope s = {.value = p->rd / p->dd};
    double n = p->n_row, b = s.value;
    double by_rows = (p->rd_rd - 2 * b * p->rd_dd + b * b * p->dd_dd) * n / (n - 1);
    double by_elements = p->rr_d2 - 2 * b * p->r_d3 + b * b * p->d4;
    s.error = sqrt(fmax(fmax(by_rows, by_elements), 0)) / p->dd;
    s.shown = p->n_row >= FEWEST_ROWS && p->dd > 0 && isfinite(b) && isfinite(s.error) && fabs(b - 1) <= ASIDE &&
              b >= shown * s.error;
    return s;
}

fd_slope fd_projection_slope(const fd_projection *p) {
    return slope_beyond(p, SHOWN);
}

typedef struct search {
    const fd_graph *graph;
    int32_t n_fault;
    const fd_diagnose_options *o;
    fd_projection *at; /* [n_node, n_fault]; owned */
    double *cost;      /* [n_node] multiplications; owned */
    bool *chosen;      /* [n_node] follows an unrecorded choice; owned */
    double spent;
    int32_t n_looked_at; /* nodes before this one */
} search;

/* One row, in bounds of the op as it should be. */
static void project_row(const fd_trial_rows *rows, const fd_variant *bug, int32_t row, fd_projection *out) {
    const fd_explain_request *r = rows->request;
    int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv);
    fd_projection own = {.n_row = 1};
    for (int64_t k = 0; k < stride; k++) {
        int64_t i = row * stride + k;
        double tau = rows->plain.tau[i], sound = (double)rows->plain.rows[i], c = (double)r->output[i];
        double d = ((double)bug->rows[i] - sound) / tau, x = (c - sound) / tau;
        if (r->args.node->over_kv && k % r->args.n_kv > r->args.pos0 + row) continue;
        if (!(tau > 0) || !isfinite(tau) || !isfinite(d) || !isfinite(x)) continue;
        own.rd += x * d;
        own.dd += d * d;
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
    fd_projection_add(out, &own);
}

/* fd_diagnose_look_fn: each fault of the table at one node. Its own roundings are no bug where the class rounds. */
static fd_code project(void *user, const fd_diagnose_options *options, const fd_explain_request *request,
                       fd_error *err) {
    search *s = user;
    int32_t node = options->finding->node;
    fd_explanation unused = {0};
    fd_trial t;
    fd_code code = fd_trial_open(request, &unused, &t, err);
    bool possible = code == FD_OK && t.all.plain.state == FD_VARIANT_COMPUTED && t.all.plain.tau;
    for (int32_t f = 0; possible && f < s->n_fault && code == FD_OK; f++) {
        fd_hypothesis h = {.guess = FD_GUESS_FAULT, .fault = f, .node = -1, .layer = FD_ANY_LAYER};
        fd_variant bug = {0};
        if (fd_fault_at(f)->u_in > 0) continue;
        code = fd_evaluate(t.all.bench, &h, node, false, &bug, err);
        if (code == FD_OK && bug.state == FD_VARIANT_COMPUTED) {
            s->cost[node] += request->products * request->args.n_pos;
            for (int32_t row = request->n_unjudged; row < request->args.n_pos; row++)
                project_row(&t.all, &bug, row, &s->at[(int64_t)node * s->n_fault + f]);
        }
        fd_variant_free(&bug);
    }
    fd_trial_close(&t);
    return code;
}

static const fd_projection *of_node(const search *s, int32_t node, int32_t fault) {
    return &s->at[(int64_t)node * s->n_fault + fault];
}

static bool of_kind(const search *s, int32_t node, int32_t kind) {
    return fd_fault_same_kind(&s->graph->nodes[node], &s->graph->nodes[kind]);
}

/* One bug, shown in all nodes of a kind together (node -1) or in one. */
typedef struct shown {
    int32_t kind, node, fault;
    fd_slope slope;
    double gain;
} shown;

/* Of several that are shown the one that takes most of the errors away: Σ r² − Σ (r − d)². */
static void look_at(shown *best, shown x, const fd_projection *p) {
    x.slope = fd_projection_slope(p);
    x.gain = 2 * p->rd - p->dd;
    if (x.slope.shown && (best->fault < 0 || x.gain > best->gain)) *best = x;
}

/* Of a fault, over the nodes where `x` is shown. */
static fd_projection sum_of(const search *s, const shown *x, int32_t fault) {
    fd_projection all = {0};
    for (int32_t i = x->kind; i < s->graph->n_node; i++)
        if (of_kind(s, i, x->kind) && (x->node < 0 || i == x->node)) fd_projection_add(&all, of_node(s, i, fault));
    return all;
}

/* The kind that comes first in the graph and shows a bug: what comes after it may show it, too. In all layers, else in one.
 */
static shown find(const search *s) {
    for (int32_t kind = 0; kind < s->graph->n_node; kind++) {
        shown best = {.fault = -1};
        if (!fd_fault_begins_kind(s->graph, kind)) continue;
        for (int32_t f = 0; f < s->n_fault; f++) {
            shown everywhere = {.kind = kind, .node = -1, .fault = f};
            fd_projection all = sum_of(s, &everywhere, f);
            look_at(&best, everywhere, &all);
        }
        for (int32_t f = 0; f < s->n_fault && best.fault < 0; f++)
            for (int32_t i = kind; i < s->graph->n_node; i++)
                if (of_kind(s, i, kind)) look_at(&best, (shown){.kind = kind, .node = i, .fault = f}, of_node(s, i, f));
        if (best.fault >= 0) return best;
    }
    return (shown){.fault = -1};
}

static fd_explain_fit fit_of(const search *s, int32_t fault, const fd_projection *p) {
    fd_explain_fit fit = {.hypothesis = {.guess = FD_GUESS_FAULT, .fault = fault, .node = -1, .layer = FD_ANY_LAYER}};
    snprintf(fit.name, sizeof fit.name, "%s", fd_hypothesis_name(&fit.hypothesis));
    fd_hypothesis_summary(&fit.hypothesis, s->graph, fit.summary, sizeof fit.summary);
    fit.z = fabs(p->candidate - p->sound) / p->tau;
    fit.ulp = INFINITY;
    return fit;
}

static fd_node_finding finding_at(const search *s, int32_t node, const fd_projection *p) {
    return (fd_node_finding){.finding = FD_FOUND_INTRODUCED,
                             .node = node,
                             .step = 0,
                             .pos = p->pos,
                             .worst = p->element,
                             .candidate = p->candidate,
                             .replayed = p->sound,
                             .tau = p->tau,
                             .z = fabs(p->candidate - p->sound) / p->tau,
                             .reference = NAN,
                             .n_element = fd_node_elements(&s->graph->nodes[node], p->pos + 1),
                             .span_first = node};
}

/* Others of the table whose slope is 1 within three standard errors cannot be told from it. */
static void list_others(const search *s, const shown *x, fd_explanation *out) {
    for (int32_t f = 0; f < s->n_fault; f++) {
        fd_projection p = sum_of(s, x, f);
        fd_slope slope = fd_projection_slope(&p);
        if (f == x->fault || !slope.shown || !(fabs(slope.value - 1) <= 3 * slope.error)) continue;
        if (out->n_remaining < FD_MAX_REMAINING) out->remaining[out->n_remaining] = fit_of(s, f, &p);
        out->n_remaining++;
    }
}

/* The findings, and the explanation. */
static fd_code describe(const search *s, const shown *x, fd_attribution *of, fd_explanation *out, fd_causes *causes,
                        fd_error *err) {
    const fd_graph *graph = s->graph;
    bool *layers = calloc((size_t)graph->hparams.n_layer + 1, sizeof *layers);
    int32_t first = -1, n = 0;
    fd_projection all = sum_of(s, x, x->fault);
    if (!layers) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    for (int32_t i = x->kind; i < graph->n_node; i++) {
        const fd_projection *p = of_node(s, i, x->fault);
        if (!of_kind(s, i, x->kind) || (x->node >= 0 && i != x->node) || p->n_row == 0) continue;
        if (!slope_beyond(p, SHOWN_HERE).shown) continue;
        of->suspect[i] = finding_at(s, i, p);
        if (graph->nodes[i].layer >= 0) layers[graph->nodes[i].layer] = true;
        if (first < 0) first = i;
        n++;
    }
    if (first >= 0) {
        *out = (fd_explanation){.named = true, .layer = graph->nodes[first].layer, .n_remaining = 1};
        snprintf(out->node, sizeof out->node, "%s", graph->nodes[first].name);
        out->slope = x->slope.value;
        out->slope_error = x->slope.error;
        out->slope_rows = all.n_row;
        out->remaining[0] = fit_of(s, x->fault, &all);
        list_others(s, x, out);
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

static bool is_wide(const fd_numerics_class *class_) {
    return !class_->exact && !fd_class_leaves_nothing(class_) && class_->u_out >= 0x1p-24;
}

static bool is_unrecorded(const search *s, int32_t i) {
    bool ignored = s->o->ignored && s->o->ignored[i];
    return ignored || !fd_trace_has_data(s->o->trace, s->graph->nodes[i].name);
}

/* Computed from a choice of experts that was not recorded: rounding may have turned it, and then has a direction. */
static void find_choices(search *s) {
    for (int32_t i = 0; i < s->graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            int32_t in = s->graph->nodes[i].input[k];
            if (in >= 0 && is_unrecorded(s, in)) s->chosen[i] |= s->chosen[in] || s->graph->nodes[in].op == FD_OP_TOP_K;
        }
}

/* fd_jobs.needless */
static bool is_needless(void *user, int32_t i) {
    const search *s = user;
    return is_unrecorded(s, i) || s->chosen[i];
}

/* fd_jobs.run */
static fd_code look_at_node(void *user, int32_t i, fd_error *err) {
    search *s = user;
    fd_diagnose_options ask = *s->o;
    fd_node_finding here = {.node = i, .span_first = i};
    ask.finding = &here;
    return fd_diagnose_look(&ask, project, s, err);
}

/* fd_jobs.take */
static bool take_node(void *user, int32_t i) {
    search *s = user;
    s->n_looked_at = i + 1;
    s->spent += s->cost[i];
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
    size_t n_node = (size_t)options->graph->n_node, n_fault = (size_t)fd_fault_count();
    search s = {.graph = options->graph, .o = options, .n_fault = (int32_t)n_fault};
    out->named = false;
    if (!is_wide(options->numerics) || of->found) return FD_OK;
    s.at = calloc(n_node * n_fault, sizeof *s.at);
    s.cost = calloc(n_node, sizeof *s.cost);
    s.chosen = calloc(n_node, sizeof *s.chosen);
    if (s.chosen) find_choices(&s);
    const fd_jobs nodes = {0, (int32_t)n_node, threads_for(options->graph), &s, is_needless, look_at_node, take_node};
    fd_code code = s.at && s.cost && s.chosen ? fd_run_in_order(&nodes, err)
                                              : fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    if (code == FD_OK) { /* what other threads looked at beyond the last was for nothing */
        size_t first = (size_t)s.n_looked_at * n_fault;
        memset(s.at + first, 0, sizeof *s.at * (n_node * n_fault - first));
    }
    shown x = code == FD_OK ? find(&s) : (shown){.fault = -1};
    if (x.fault >= 0) code = describe(&s, &x, of, out, causes, err);
    free(s.at);
    free(s.cost);
    free(s.chosen);
    return code;
}

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/diagnose/below_bounds_internal.h"
#include "compare/explain/trial.h"

/* Of a node in binary32, relative to it: more than an op leaves whose inputs are recorded. */
#define LEAST_LEFT 0x1p-22

/* Multiplications at one node; what is dear is not asked about to the end. */
#define MOST_SPENT_HERE 0x1p33

/* Bugs so small that binary32's bounds have room for them, all of norms: at all of them, and at each alone. */
static const char *const small_faults[] = {"eps_value", "eps_missing", "eps_outside_root"};
enum { N_SMALL = sizeof small_faults / sizeof *small_faults };

/* ---- the bugs ---- */

static void add_bug(fd_below_search *s, fd_below_bug bug) {
    s->bugs[s->n_bug++] = bug;
}

static void add_small_bugs(fd_below_search *s, int32_t fault) {
    const fd_node *nodes = s->graph->nodes;
    for (int32_t n_dim = 0; n_dim <= 2; n_dim++) add_bug(s, (fd_below_bug){fault, -1, -1, -1, n_dim});
    for (int32_t i = 0; i < s->graph->n_node; i++)
        if (fd_node_is_norm(&nodes[i]) && s->kind[i] == i) add_bug(s, (fd_below_bug){fault, i, -1, -1, 0});
    for (int32_t layer = 0; layer < s->graph->hparams.n_layer; layer++)
        add_bug(s, (fd_below_bug){fault, -1, layer, -1, 0});
    for (int32_t i = 0; i < s->graph->n_node; i++)
        if (fd_node_is_norm(&nodes[i])) add_bug(s, (fd_below_bug){fault, -1, -1, i, 0});
}

fd_code fd_below_open(const fd_diagnose_options *options, fd_below_search *out, fd_error *err) {
    const fd_graph *graph = options->graph;
    size_t n_fault = (size_t)fd_fault_count(), n_node = (size_t)graph->n_node;
    size_t most = n_fault + N_SMALL * (3 + 2 * n_node + (size_t)graph->hparams.n_layer);
    *out = (fd_below_search){.graph = graph, .o = options, .n_fault = (int32_t)n_fault};
    out->binary32 = fd_class_leaves_nothing(options->numerics);
    out->bugs = malloc(sizeof *out->bugs * most);
    out->at = calloc(n_node + 1, sizeof *out->at);
    out->cost = calloc(n_node + 1, sizeof *out->cost);
    out->kind = fd_fault_kinds(graph);
    if (!out->bugs || !out->at || !out->cost || !out->kind)
        return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    for (int32_t i = 0; i < out->n_fault; i++) add_bug(out, (fd_below_bug){i, -1, -1, -1, 0});
    for (int i = 0; i < N_SMALL && out->binary32; i++) add_small_bugs(out, fd_fault_find(small_faults[i]));
    return FD_OK;
}

void fd_below_close(fd_below_search *s) {
    for (int32_t i = 0; s->at && i < s->graph->n_node; i++) free(s->at[i]);
    free(s->at);
    free(s->cost);
    free(s->kind);
    free(s->bugs);
}

/* ---- one node ---- */

typedef struct look {
    fd_below_search *search;
    fd_trial *trial;
    int32_t node;
    fd_projection *at; /* [n_bug] */
    float **sum;       /* [n_bug] of a small fault's bugs: what they change, from all norms that they concern; owned */
    int64_t n;         /* elements */
    fd_trial_rows
        rows; /* the trial's, but for what the engine gave, which is without what `output` takes away; borrowed */
    fd_explain_request request;
    float *output; /* NULL: as it was given; owned */
} look;

static bool affordable(const look *l) {
    return l->search->cost[l->node] <= MOST_SPENT_HERE;
}

/* At one node; -1: wherever it concerns one. */
static fd_hypothesis fault_at(int32_t fault, int32_t node) {
    return (fd_hypothesis){.guess = FD_GUESS_FAULT, .fault = fault, .node = node, .layer = FD_ANY_LAYER};
}

static fd_code evaluate(const look *l, fd_hypothesis h, fd_variant *bug, fd_error *err) {
    const fd_explain_request *r = l->trial->all.request;
    FD_TRY(fd_evaluate(l->trial->all.bench, &h, l->node, false, bug, err));
    if (bug->state == FD_VARIANT_COMPUTED) l->search->cost[l->node] += r->products * r->args.n_pos;
    return FD_OK;
}

/* Of few bits, a step of its type at least: capped by c·tanh(s / c), a small s that has its 16 bits comes out as itself. That is
 * rounding, and in the bug's direction. */
#define A_STEP 4.0

static void add_rows(const look *l, const fd_variant *bug, int32_t to) {
    const fd_explain_request *r = l->trial->all.request;
    const double least = to < l->search->n_fault && fd_fault_at(to)->hardly ? A_STEP * r->numerics->u_op : 0;
    for (int32_t row = r->n_unjudged; row < r->args.n_pos; row++)
        fd_projection_add_row(&l->rows, bug, row, least, &l->at[to]);
}

/* Σ (a − b)², where it is finite. */
static double apart(const float *a, const float *b, int64_t first, int64_t end) {
    double sum = 0;
    for (int64_t i = first; i < end; i++) {
        const double d = (double)a[i] - (double)b[i];
        if (isfinite(d)) sum += d * d;
    }
    return sum;
}

/* Engines of 16-bit tensors hold the weights of norms in 16 bits, too, where the file has them in 32. That is the same in every row: of
 * 256 weights a fifth of what n − 1 for n changes. Where it leaves less, it is no part of the residual. */
static fd_code take_norm_weights_away(look *l, fd_error *err) {
    const fd_explain_request *r = l->trial->all.request;
    const double u = r->numerics->u_out;
    const char *name = u >= 0x1p-8 ? "norm_weight_bf16" : "norm_weight_f16";
    const float *plain = l->trial->all.plain.rows;
    const int64_t first = r->n_unjudged * (l->n / r->args.n_pos);
    fd_variant held = {0};
    if (l->search->binary32 || !(u >= 0x1p-11)) return FD_OK;
    fd_code code = evaluate(l, fault_at(fd_fault_find(name), -1), &held, err);
    const bool is_less = code == FD_OK && held.state == FD_VARIANT_COMPUTED &&
                         apart(r->output, held.rows, first, l->n) < apart(r->output, plain, first, l->n);
    if (is_less) {
        l->output = malloc(sizeof *l->output * (size_t)l->n);
        if (!l->output) code = fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
        for (int64_t i = 0; l->output && i < l->n; i++) l->output[i] = r->output[i] - (held.rows[i] - plain[i]);
        if (l->output) l->request.output = l->output;
    }
    if (code == FD_OK) fd_variant_free(&held);
    return code;
}

/* Another matrix than the file's changes a product by as much as it is, which no bounds of the product itself have room for; it costs
 * the whole matrix in binary32, of logits gigabytes. */
static bool rewrites_weights(const fd_fault_info *fault) {
    return strcmp(fault->family, "loader") == 0 || strcmp(fault->family, "dequantise") == 0;
}

static bool through_a_product(const look *l) {
    bool any = false;
    for (int32_t i = 0; i + 1 < l->trial->n_span; i++)
        any |= l->search->graph->nodes[l->trial->span[i]].op == FD_OP_MATMUL;
    return any;
}

/* Its own roundings are no bug where the class rounds. Through several layers binary32 has no time for the whole table. */
static fd_code look_along_table(look *l, fd_error *err) {
    const fd_below_search *s = l->search;
    const bool room_for_weights = through_a_product(l);
    if (s->binary32 && fd_trial_many_layers(l->trial)) return FD_OK;
    for (int32_t i = 0; i < s->n_fault && affordable(l); i++) {
        const fd_hypothesis h = fault_at(i, -1);
        fd_variant bug = {0};
        bool by_steps = false;
        if (fd_fault_at(i)->u_in > 0 || (rewrites_weights(fd_fault_at(i)) && !room_for_weights)) continue;
        fd_code code = evaluate(l, h, &bug, err);
        const bool changes = code == FD_OK && bug.state == FD_VARIANT_COMPUTED;
        if (changes) code = fd_trial_turns_steps_alone(l->trial, &h, &by_steps, err);
        if (changes && code == FD_OK && !by_steps) add_rows(l, &bug, i);
        fd_variant_free(&bug);
        FD_TRY(code);
    }
    return FD_OK;
}

static bool concerns(const fd_below_search *s, const fd_below_bug *bug, const fd_node *norm) {
    if (bug->kind >= 0) return bug->kind == s->kind[norm->id];
    if (bug->n_dim) return bug->n_dim == norm->n_dim;
    return bug->layer >= 0 ? bug->layer == norm->layer : bug->node < 0 || bug->node == norm->id;
}

/* What the fault at one norm changes is so little that changes add up. */
static fd_code add_norm(look *l, int32_t fault, const fd_node *norm, fd_error *err) {
    const fd_below_search *s = l->search;
    const float *plain = l->trial->all.plain.rows;
    fd_variant bug = {0};
    fd_code code = evaluate(l, fault_at(fault, norm->id), &bug, err);
    for (int32_t b = s->n_fault; b < s->n_bug && code == FD_OK && bug.state == FD_VARIANT_COMPUTED; b++) {
        if (s->bugs[b].fault != fault || !concerns(s, &s->bugs[b], norm)) continue;
        if (!l->sum[b]) l->sum[b] = calloc((size_t)l->n, sizeof *l->sum[b]);
        if (!l->sum[b]) code = fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
        for (int64_t i = 0; i < l->n && code == FD_OK; i++) l->sum[b][i] += bug.rows[i] - plain[i];
    }
    fd_variant_free(&bug);
    return code;
}

/* One small fault at a time, so that the rows of its bugs alone are kept. */
static fd_code look_along_small(look *l, int32_t fault, fd_error *err) {
    const fd_below_search *s = l->search;
    const float *plain = l->trial->all.plain.rows;
    fd_code code = FD_OK;
    for (int32_t i = 0; i < l->trial->n_span && code == FD_OK && affordable(l); i++) {
        const fd_node *norm = &s->graph->nodes[l->trial->span[i]];
        if (fd_node_is_norm(norm)) code = add_norm(l, fault, norm, err);
    }
    for (int32_t b = s->n_fault; b < s->n_bug; b++) {
        if (!l->sum[b]) continue;
        for (int64_t i = 0; i < l->n; i++) l->sum[b][i] += plain[i];
        fd_variant bug = {.state = FD_VARIANT_COMPUTED, .rows = l->sum[b]};
        if (code == FD_OK && affordable(l)) add_rows(l, &bug, b);
        free(l->sum[b]);
        l->sum[b] = NULL;
    }
    return code;
}

static bool leaves_enough(const fd_trial *t, int64_t stride) {
    const fd_explain_request *r = t->all.request;
    double left = 0, size = 0;
    for (int64_t i = r->n_unjudged * stride; i < r->args.n_pos * stride; i++) {
        double y = (double)t->all.plain.rows[i], e = (double)r->output[i] - y;
        if (!isfinite(e)) continue;
        left += e * e;
        size += y * y;
    }
    return t->n_span > 1 && left > LEAST_LEFT * LEAST_LEFT * size;
}

static fd_code look_along_all(fd_below_search *s, fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv);
    bool possible = t->all.plain.state == FD_VARIANT_COMPUTED && t->all.plain.tau;
    if (!possible || (s->binary32 && !leaves_enough(t, stride))) return FD_OK;
    look l = {s, t, r->args.node->id, calloc((size_t)s->n_bug, sizeof *l.at), NULL, r->args.n_pos * stride, t->all, *r};
    l.rows.request = &l.request;
    s->at[l.node] = l.at;
    l.sum = calloc((size_t)s->n_bug, sizeof *l.sum);
    fd_code code = l.at && l.sum ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    if (code == FD_OK) code = take_norm_weights_away(&l, err);
    if (code == FD_OK) code = look_along_table(&l, err);
    for (int i = 0; i < N_SMALL && s->binary32 && code == FD_OK; i++)
        code = look_along_small(&l, fd_fault_find(small_faults[i]), err);
    free(l.sum);
    free(l.output);
    return code;
}

/* fd_diagnose_look_fn */
static fd_code look_here(void *user, const fd_diagnose_options *options, const fd_explain_request *request,
                         fd_error *err) {
    fd_explanation unused = {0};
    fd_trial t;
    (void)options;
    fd_code code = fd_trial_open(request, &unused, &t, err);
    if (code == FD_OK) code = look_along_all(user, &t, err);
    fd_trial_close(&t);
    return code;
}

fd_node_finding fd_below_finding(const fd_graph *graph, const fd_trace *trace, int32_t node, const fd_projection *p,
                                 int32_t span_first) {
    return (fd_node_finding){.finding = FD_FOUND_INTRODUCED,
                             .node = node,
                             .step = fd_trace_step_of(trace, p->pos),
                             .pos = p->pos,
                             .worst = p->element,
                             .candidate = p->candidate,
                             .replayed = p->sound,
                             .tau = p->tau,
                             .z = fabs(p->candidate - p->sound) / p->tau,
                             .reference = NAN,
                             .n_element = fd_node_elements(&graph->nodes[node], p->pos + 1),
                             .span_first = span_first};
}

/* A prompt in chunks may begin with one of two rows. */
static int32_t longest_step(const fd_diagnose_options *o) {
    const fd_trace_step *steps = fd_trace_steps(o->trace);
    int32_t best = 0;
    for (int32_t i = 1; i < fd_trace_n_step(o->trace) && steps[i].pos0 + steps[i].n_pos <= o->n_pos; i++)
        if (steps[i].n_pos > steps[best].n_pos) best = i;
    return best;
}

fd_code fd_below_look_with(const fd_diagnose_options *options, int32_t node, fd_diagnose_look_fn look_fn, void *user,
                           fd_error *err) {
    fd_diagnose_options ask = *options;
    int32_t step = longest_step(&ask);
    fd_node_finding here = {.node = node, .span_first = node, .step = step};
    if (step > 0) here.pos = fd_trace_steps(ask.trace)[step].pos0;
    ask.finding = &here;
    ask.whole_run = step > 0;
    return fd_diagnose_look(&ask, look_fn, user, err);
}

fd_code fd_below_look(fd_below_search *s, int32_t node, fd_error *err) {
    return fd_below_look_with(s->o, node, look_here, s, err);
}

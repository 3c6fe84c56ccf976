#include "compare/diagnose/class_by_bug.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/diagnose/later_steps.h"
#include "compare/diagnose/suspects.h"
#include "compare/products/products.h"
#include "compare/replay/in_order.h"
#include "compare/replay/z_map.h"

/* Positions looked at: a bug that shows later than that is found in the inferred class or not at all. And findings
 * that are asked whether the same bug explains them. */
enum { MOST_POSITIONS = 64, MOST_ASKED = 12 };

/* Multiplications, through a span: a second or two of one core. */
#define MOST_SPENT_ON_TABLE   0x1p31
#define MOST_SPENT_ON_GUESSES 0x1p32

/* What departs: by the bounds, or by what is left where the bounds have room. */
static const fd_node_finding *departing(const fd_attribution *of, int32_t node) {
    return of->introduced[node].finding != FD_FOUND_NOTHING ? &of->introduced[node] : &of->suspect[node];
}

/* The classes that leave nothing, of engines in binary32. */
enum { MOST_TIGHT = 16 };

static bool is_tight(const fd_numerics_class *class_, const fd_graph *graph) {
    return fd_class_leaves_nothing(class_) && class_->u_out >= 0x1p-24 && fd_class_is_another(class_, graph);
}

/* Sums of V in 16 bits have room for bugs of attention. */
static bool may_be_it(const fd_numerics_class *class_, const fd_graph *graph, const fd_numerics_class *inferred) {
    return class_ != inferred && is_tight(class_, graph) && !(class_->u_mix > 0x1p-24);
}

/* The other findings: does the bug explain half of them? And all but as many as another class leaves without a bug: else that one
 * says more. */
static fd_code explains_most(fd_diagnose_options *ask, const fd_attribution *of, const fd_hypothesis *h, int32_t fewest,
                             bool *yes, fd_error *err) {
    int32_t n_node = ask->graph->n_node, n = 0, n_explained = 0, n_asked = 0;
    for (int32_t i = 0; i < n_node; i++) n += departing(of, i)->finding != FD_FOUND_NOTHING;
    int32_t stride = n / MOST_ASKED + 1, seen = 0;
    for (int32_t i = 0; i < n_node; i++) {
        bool fits;
        if (departing(of, i)->finding == FD_FOUND_NOTHING || seen++ % stride) continue;
        ask->finding = departing(of, i);
        FD_TRY(fd_diagnose_fits(ask, h, &fits, err));
        n_asked++;
        n_explained += fits;
    }
    *yes = 2 * n_explained >= n_asked && (n_asked - n_explained) * stride <= fewest;
    return FD_OK;
}

/* What a tight class leaves of the trace. */
typedef struct attempt {
    const fd_numerics_class *class_;
    fd_attribution of;     /* owned */
    fd_verdict_map map;    /* its z by position; owned; empty: of a verdict that looks at later steps itself */
    fd_node_finding first; /* what departs first; finding 0: nothing does */
    int32_t n;             /* nodes that depart */
    double left;           /* mean logarithm of their largest errors */
    bool named;            /* one bug explains them */
} attempt;

static void measure(attempt *a, const fd_graph *graph) {
    double sum = 0;
    int32_t n = 0;
    a->first = a->of.found ? a->of.first : fd_first_suspect(graph, &a->of);
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node_finding *f = departing(&a->of, i);
        double error = fabs(f->candidate - f->replayed);
        if (f->finding == FD_FOUND_NOTHING) continue;
        a->n++;
        if (!(error > 0) || !isfinite(error)) continue;
        sum += log(error);
        n++;
    }
    a->left = n ? sum / n : INFINITY;
}

static void add_row(void *user, const fd_attribution_row *row) {
    fd_z_map_add(&((attempt *)user)->map, row);
}

static fd_code judge(const fd_attribution_options *options, const fd_numerics_class *class_, attempt *out,
                     fd_error *err) {
    fd_attribution_options how = *options;
    how.numerics = class_;
    how.on_row = add_row;
    how.user = out;
    how.progress = NULL;
    if (how.n_pos > MOST_POSITIONS) how.n_pos = MOST_POSITIONS;
    *out = (attempt){.class_ = class_};
    FD_TRY(fd_z_map_open(how.graph, how.n_pos, &out->map, err));
    return fd_attribute_errors(&how, &out->of, err);
}

static void forget(attempt *a) {
    fd_attribution_free(&a->of);
    fd_z_map_free(&a->map);
}

/* A name has to hold in later steps, as in the verdict. */
static fd_code look_later(const fd_diagnose_options *ask, const attempt *a, fd_explanation *e, fd_error *err) {
    if (!a->map.by_pos) return FD_OK;
    const float *z = a->map.by_pos + (size_t)a->first.node * (size_t)a->map.n_pos;
    FD_TRY(fd_refute_by_later_steps(ask, z, a->map.n_pos, e, err));
    return fd_doubt_few_rows(ask, z, a->map.n_pos, e, err);
}

/* `table_alone`: without guesses, which are many. `fewest`: nodes that depart in the tight class that leaves fewest. */
static fd_code explain(const fd_attribution_options *options, attempt *a, bool table_alone, bool undecided,
                       int32_t fewest, fd_error *err) {
    fd_diagnose_options ask = fd_diagnose_question(options, &a->of);
    ask.finding = &a->first;
    ask.table_alone = table_alone;
    ask.most_spent = table_alone ? MOST_SPENT_ON_TABLE : MOST_SPENT_ON_GUESSES;
    fd_explanation e = {0};
    if (a->first.finding == FD_FOUND_NOTHING) return FD_OK;
    FD_TRY(fd_diagnose(&ask, &e, err));
    FD_TRY(look_later(&ask, a, &e, err));
    /* a class that is shown may well round this tensor; beside one that has room alone, one tensor rounded is a bug */
    bool rounding = fd_explains_by_rounding(&e) || (!undecided && fd_explains_by_one_rounding(&e)) ||
                    fd_explains_by_attention_factors(options->graph, &e);
    bool says_something = options->numerics == a->class_ || !(rounding || (e.named && fd_explains_by_fit(&e)));
    if (!e.named || !says_something) return FD_OK;
    ask.rows_alone = e.rows_alone;
    FD_TRY(explains_most(&ask, &a->of, &e.remaining[0].hypothesis, fewest, &a->named, err));
    return FD_OK;
}

static void take(fd_attribution_options *options, const attempt *a, fd_class_evidence *evidence) {
    if (a->class_ == options->numerics) return;
    *evidence = (fd_class_evidence){.kind = FD_EVIDENCE_BUG};
    snprintf(evidence->other, sizeof evidence->other, "%s", options->numerics->name);
    snprintf(evidence->node, sizeof evidence->node, "%s", options->graph->nodes[a->first.node].name);
    options->numerics = a->class_;
}

/* With the wrong class more departs: what the class rounds, too, or the bug's error and the class's together. */
static int by_what_is_left(const void *x, const void *y) {
    const attempt *a = x, *b = y;
    if (a->n != b->n) return a->n < b->n ? -1 : 1;
    return a->left < b->left ? -1 : a->left > b->left;
}

/* Through a span each question costs a second: then the classes that leave least are asked alone. A class in which a step departs that
 * the inferred one, which is tight, gives is not asked. */
static bool worth_asking(const attempt *a, const attempt *own, int rank, bool table_alone) {
    if (own->first.finding != FD_FOUND_NOTHING && a->first.step < own->first.step) return false;
    return a->first.span_first == a->first.node || rank < (table_alone ? 2 : 1);
}

static fd_code try_attempt(fd_attribution_options *options, attempt *a, bool table_alone, int32_t fewest,
                           fd_class_evidence *evidence, fd_error *err) {
    FD_TRY(explain(options, a, table_alone, evidence->undecided, fewest, err));
    if (a->named) take(options, a, evidence);
    return FD_OK;
}

/* Guesses: in the inferred class, if that is tight, they come with the verdict. */
static fd_code explain_in_order(fd_attribution_options *options, const attempt *own, attempt *attempts, int n,
                                bool guesses, fd_class_evidence *evidence, fd_error *err) {
    for (int pass = 0; pass < 1 + guesses; pass++)
        for (int i = 0; i < n; i++) {
            if (!worth_asking(&attempts[i], own, i, pass == 0)) continue;
            FD_TRY(try_attempt(options, &attempts[i], pass == 0, attempts[0].n, evidence, err));
            if (attempts[i].named) return FD_OK;
        }
    return FD_OK;
}

/* Where attention departs first, all else says nothing of the cache's type: it may be another's than that of the class that was
 * inferred. `own`: in that class, where no guess explains it. */
static fd_code explain_with_other_caches(fd_attribution_options *options, const attempt *own, attempt *attempts, int n,
                                         fd_class_evidence *evidence, fd_error *err) {
    int n_asked = 0;
    for (int i = 0; i < n && n_asked < 3; i++) {
        if (attempts[i].n != own->n || attempts[i].first.node != own->first.node ||
            attempts[i].first.step < own->first.step)
            continue;
        n_asked++;
        FD_TRY(try_attempt(options, &attempts[i], false, attempts[0].n, evidence, err));
        if (attempts[i].named) return FD_OK;
    }
    return FD_OK;
}

static fd_code judge_and_try(fd_attribution_options *options, const attempt *own, const fd_numerics_class *class_,
                             fd_class_evidence *evidence, fd_error *err) {
    attempt a;
    fd_code code = judge(options, class_, &a, err);
    if (code == FD_OK) measure(&a, options->graph);
    const bool fits = code == FD_OK && a.n <= own->n && a.first.node == own->first.node;
    if (fits) code = try_attempt(options, &a, false, own->n, evidence, err);
    forget(&a);
    return code;
}

/* What reads a cache, or one product behind it. */
static bool reads_cache(const fd_attribution_options *options, const fd_node_finding *f) {
    const fd_node *nodes = options->graph->nodes, *node = &nodes[f->node];
    const bool behind = node->op == FD_OP_MATMUL && nodes[node->input[0]].op == FD_OP_ATTN_MIX;
    return f->finding != FD_FOUND_NOTHING && (fd_reads_kv_cache(node) || (behind && f->span_first < f->node));
}

/* Where a fused kernel's sum departs first, wrong throughout, nothing says how it rounds: it may have been in 16 bits. */
static fd_code explain_with_fused_sums(fd_attribution_options *options, const attempt *own, fd_class_evidence *evidence,
                                       fd_error *err) {
    const fd_numerics_class *inferred = options->numerics, *class_;
    const bool scores = options->graph->nodes[own->first.node].op == FD_OP_ATTN_SCORES;
    if (own->first.span_first == own->first.node || scores) return FD_OK;
    for (int32_t i = 0; (class_ = fd_numerics_class_at(i)) && options->numerics == inferred; i++)
        if (class_ != inferred && is_tight(class_, options->graph) && class_->u_mix > 0x1p-24)
            FD_TRY(judge_and_try(options, own, class_, evidence, err));
    return FD_OK;
}

typedef struct tight_classes {
    const fd_attribution_options *options;
    attempt at[MOST_TIGHT];
} tight_classes;

/* fd_jobs: all of them are wanted */
static bool is_needless(void *user, int32_t i) {
    (void)user, (void)i;
    return false;
}

static fd_code judge_tight(void *user, int32_t i, fd_error *err) {
    tight_classes *t = user;
    FD_TRY(judge(t->options, t->at[i].class_, &t->at[i], err));
    measure(&t->at[i], t->options->graph);
    return FD_OK;
}

static bool take_tight(void *user, int32_t i) {
    (void)user, (void)i;
    return true;
}

/* In the inferred class, which is tight: as it was judged there, if that is not too much. out->of is borrowed. */
static fd_code explain_inferred(const fd_attribution_options *options, const fd_attribution *judged, bool undecided,
                                attempt *out, fd_error *err) {
    attempt own = {.class_ = options->numerics, .of = *judged};
    bool too_much = judged->n_pos > MOST_POSITIONS;
    fd_code code = too_much ? judge(options, options->numerics, &own, err) : FD_OK;
    if (code == FD_OK) {
        measure(&own, options->graph);
        code = explain(options, &own, true, undecided, INT32_MAX, err);
        if (code == FD_OK && !own.named && reads_cache(options, &own.first))
            code = explain(options, &own, false, undecided, INT32_MAX, err);
    }
    if (too_much) forget(&own);
    *out = own;
    return code;
}

/* GELU from a table of binary16, which has room for another form of it. */
static bool reads_table(const fd_attribution_options *options) {
    bool table = false;
    for (int32_t i = 0; i < options->graph->n_node; i++) {
        const fd_node *node = &options->graph->nodes[i];
        table |= (node->op == FD_OP_GELU || node->op == FD_OP_GELU_MUL) && fd_gelu_is_table(options->numerics, node);
    }
    return table;
}

/* The table of faults in the tight classes; then guesses, which are many. */
fd_code fd_refute_class_by_bug(fd_attribution_options *options, const fd_attribution *judged,
                               fd_class_evidence *evidence, fd_error *err) {
    const fd_numerics_class *inferred = options->numerics;
    tight_classes tight = {.options = options};
    int32_t n = 0;
    attempt own = {0};
    const bool is_one = is_tight(inferred, options->graph);
    if (inferred->exact || inferred->u_out < 0x1p-24 || inferred->u_out > 0x1p-24) return FD_OK;
    if (is_one) FD_TRY(explain_inferred(options, judged, evidence->undecided, &own, err));
    const bool nothing = is_one && own.first.finding == FD_FOUND_NOTHING;
    if (is_one && (own.named || (nothing && !reads_table(options)))) return FD_OK;
    for (int32_t i = 0; fd_numerics_class_at(i) && n < MOST_TIGHT; i++)
        if (may_be_it(fd_numerics_class_at(i), options->graph, inferred))
            tight.at[n++].class_ = fd_numerics_class_at(i);
    const fd_jobs jobs = {0, n, fd_products_callers(options->device), &tight, is_needless, judge_tight, take_tight};
    fd_code code = fd_run_in_order(&jobs, err);
    qsort(tight.at, (size_t)n, sizeof *tight.at, by_what_is_left);
    if (code == FD_OK) code = explain_in_order(options, &own, tight.at, n, !is_one, evidence, err);
    if (code == FD_OK && is_one && options->numerics == inferred && reads_cache(options, &own.first))
        code = explain_with_other_caches(options, &own, tight.at, n, evidence, err);
    if (code == FD_OK && is_one && options->numerics == inferred && reads_cache(options, &own.first))
        code = explain_with_fused_sums(options, &own, evidence, err);
    for (int32_t i = 0; i < n; i++) forget(&tight.at[i]);
    return code;
}

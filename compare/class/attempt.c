#include "compare/class/attempt.h"

#include <math.h>

#include "compare/diagnose/later_steps.h"
#include "compare/diagnose/suspects.h"
#include "compare/diagnose/twins.h"
#include "compare/explain/trial.h"

/* Findings that are asked whether the same bug explains them. */
enum { MOST_ASKED = 12 };

/* Multiplications, through a span: a second or two of one core. */
#define MOST_SPENT_ON_TABLE   0x1p31
#define MOST_SPENT_ON_GUESSES 0x1p32
#define NEXT_TO_NOTHING       0x1p14

/* What departs: by the bounds, or by what is left where the bounds have room. */
static const fd_node_finding *departing(const fd_attribution *of, int32_t node) {
    return of->introduced[node].finding != FD_FOUND_NOTHING ? &of->introduced[node] : &of->suspect[node];
}

/* The other findings: does the bug explain half of them? And all but as many as another class leaves without a bug: else that one
 * says more. */
static fd_code explains_most(fd_diagnose_options *ask, fd_class_attempt *a, const fd_hypothesis *h, int32_t fewest,
                             fd_error *err) {
    const fd_attribution *of = &a->of;
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
    a->named = 2 * n_explained >= n_asked && (n_asked - n_explained) * stride <= fewest;
    a->all = n_explained == n_asked;
    return FD_OK;
}

void fd_class_attempt_measure(fd_class_attempt *a, const fd_graph *graph) {
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
    fd_z_map_add(&((fd_class_attempt *)user)->map, row);
}

fd_code fd_class_attempt_judge(const fd_attribution_options *options, const fd_numerics_class *class_,
                               fd_class_attempt *out, fd_error *err) {
    fd_attribution_options how = *options;
    how.numerics = class_;
    how.on_row = add_row;
    how.user = out;
    how.progress = NULL;
    if (how.n_pos > FD_ATTEMPT_POSITIONS) how.n_pos = FD_ATTEMPT_POSITIONS;
    *out = (fd_class_attempt){.class_ = class_};
    FD_TRY(fd_z_map_open(how.graph, how.n_pos, &out->map, err));
    return fd_attribute_errors(&how, &out->of, err);
}

void fd_class_attempt_free(fd_class_attempt *a) {
    fd_attribution_free(&a->of);
    fd_z_map_free(&a->map);
}

/* A name has to hold in later steps, as in the verdict. */
static fd_code look_later(const fd_diagnose_options *ask, const fd_class_attempt *a, fd_explanation *e, fd_error *err) {
    if (!a->map.by_pos) return FD_OK;
    const float *z = a->map.by_pos + (size_t)a->first.node * (size_t)a->map.n_pos;
    FD_TRY(fd_add_twins(ask, e, err));
    FD_TRY(fd_refute_by_later_steps(ask, z, a->map.n_pos, e, err));
    return fd_doubt_few_rows(ask, z, a->map.n_pos, e, err);
}

/* A guess with a number. In the engine's own class it leaves a hundred-thousandth of the error. */
static bool leaves_much(const fd_explanation *e) {
    const fd_explain_fit *fit = &e->remaining[0];
    return fit->hypothesis.guess != FD_GUESS_NONE && fit->rms * NEXT_TO_NOTHING > e->unmodified.rms;
}

fd_code fd_class_attempt_explain(const fd_attribution_options *options, fd_class_attempt *a, bool table_alone,
                                 bool undecided, int32_t fewest, fd_error *err) {
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
    bool says_something =
        options->numerics == a->class_ || !(rounding || (e.named && fd_explains_by_fit(options->graph, &e)));
    const fd_explain_fit *near = e.n_remaining > 0 && !e.named ? &e.remaining[0] : &e.runner_up;
    if ((!e.named || leaves_much(&e)) && near->name[0] && fd_fit_decides(near, &e.unmodified)) a->near = *near;
    if (!e.named || !says_something) return FD_OK;
    a->fitted = fd_explains_by_fit(options->graph, &e);
    a->named_left = e.remaining[0].rms / e.unmodified.rms;
    ask.rows_alone = e.rows_alone;
    return explains_most(&ask, a, &e.remaining[0].hypothesis, fewest, err);
}

typedef struct near_question {
    fd_hypothesis h;
    bool fits;
    double left;
} near_question;

/* fd_diagnose_look_fn */
static fd_code look_how_near(void *user, const fd_diagnose_options *options, const fd_explain_request *r,
                             fd_error *err) {
    near_question *q = user;
    fd_explanation unused = {0};
    fd_variant v = {0};
    fd_trial t;
    (void)options;
    fd_code code = fd_trial_open(r, &unused, &t, err);
    if (code == FD_OK && t.all.plain.state == FD_VARIANT_COMPUTED)
        code = fd_evaluate(t.all.bench, &q->h, r->args.node->id, true, &v, err);
    if (code == FD_OK && v.state == FD_VARIANT_COMPUTED) {
        if (v.overridden) fd_variant_widen(r, r->args.node, &v, &t.all.plain);
        const fd_explain_fit fit = fd_trial_fit(&t, &q->h, &v);
        if (!q->fits || fd_trial_is_fit(&t, &fit)) q->left = fit.rms / unused.unmodified.rms;
    }
    fd_variant_free(&v);
    fd_trial_close(&t);
    return code;
}

fd_code fd_class_attempt_nearness(const fd_attribution_options *options, const fd_class_attempt *a,
                                  const fd_hypothesis *h, bool fits, double *left, fd_error *err) {
    fd_diagnose_options ask = fd_diagnose_question(options, &a->of);
    near_question q = {.h = *h, .fits = fits, .left = INFINITY};
    ask.finding = &a->first;
    ask.numerics = a->class_;
    if (a->first.finding != FD_FOUND_NOTHING) FD_TRY(fd_diagnose_look(&ask, look_how_near, &q, err));
    *left = q.left;
    return FD_OK;
}

fd_code fd_class_attempt_confirm(const fd_attribution_options *options, fd_class_attempt *a, const fd_hypothesis *h,
                                 int32_t fewest, fd_error *err) {
    fd_diagnose_options ask = fd_diagnose_question(options, &a->of);
    return explains_most(&ask, a, h, fewest, err);
}

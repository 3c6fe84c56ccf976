#include "compare/diagnose/class_by_bug.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/diagnose/diagnose.h"

/* Positions looked at: a bug that shows later than that is found in the inferred class or not at all. And findings
 * that are asked whether the same bug explains them. */
enum { MOST_POSITIONS = 64, MOST_ASKED = 12 };

/* What each of them leaves of a sound engine's error is binary32's own. */
static const char *const tight[] = {"f32", "ggml-cpu-f32kv", "f16kv", "ggml-cpu"};
enum { N_TIGHT = sizeof tight / sizeof *tight };

static bool is_tight(const fd_numerics_class *class_) {
    for (int i = 0; i < N_TIGHT; i++)
        if (strcmp(tight[i], class_->name) == 0) return true;
    return false;
}

/* Rounding is what the class itself does: it says nothing against it. */
static bool is_rounding(const fd_hypothesis *h) {
    if (h->guess == FD_GUESS_ROUNDED) return true;
    return h->guess == FD_GUESS_FAULT && strcmp(fd_fault_at(h->fault)->family, "numerics") == 0;
}

/* The other findings: does the bug explain half of them? */
static fd_code explains_most(fd_diagnose_options *ask, const fd_attribution *of, const fd_hypothesis *h, bool *yes,
                             fd_error *err) {
    int32_t n_node = ask->graph->n_node, n = 0, n_explained = 0, n_asked = 0;
    for (int32_t i = 0; i < n_node; i++) n += of->introduced[i].finding != FD_FOUND_NOTHING;
    int32_t stride = n / MOST_ASKED + 1, seen = 0;
    for (int32_t i = 0; i < n_node; i++) {
        bool fits;
        if (of->introduced[i].finding == FD_FOUND_NOTHING || seen++ % stride) continue;
        ask->finding = &of->introduced[i];
        FD_TRY(fd_diagnose_fits(ask, h, &fits, err));
        n_asked++;
        n_explained += fits;
    }
    *yes = 2 * n_explained >= n_asked;
    return FD_OK;
}

/* What a class leaves of the trace. */
typedef struct outcome {
    bool found, named; /* something departs; one bug explains that */
    double left;       /* mean logarithm of the largest errors of what departs */
    char node[64];
} outcome;

static double errors_left(const fd_attribution *of, int32_t n_node) {
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < n_node; i++) {
        double error = fabs(of->introduced[i].candidate - of->introduced[i].replayed);
        if (of->introduced[i].finding == FD_FOUND_NOTHING || !(error > 0) || !isfinite(error)) continue;
        sum += log(error);
        n++;
    }
    return n ? sum / n : INFINITY;
}

/* `table_alone`: without guesses, which are many. */
static fd_code try_class(const fd_attribution_options *options, const fd_numerics_class *class_, bool table_alone,
                         outcome *out, fd_error *err) {
    fd_attribution_options how = *options;
    fd_attribution of = {0};
    fd_explanation e = {0};
    how.numerics = class_;
    how.on_row = NULL;
    if (how.n_pos > MOST_POSITIONS) how.n_pos = MOST_POSITIONS;
    *out = (outcome){.left = INFINITY};
    fd_code code = fd_attribute_errors(&how, &of, err);
    if (code == FD_OK && of.found) {
        fd_diagnose_options ask = {.graph = how.graph,
                                   .trace = how.cand,
                                   .finding = &of.first,
                                   .n_pos = of.n_pos,
                                   .op = how.op,
                                   .numerics = class_,
                                   .ignored = how.ignored,
                                   .n_output = of.n_output,
                                   .table_alone = table_alone};
        out->found = true;
        out->left = errors_left(&of, how.graph->n_node);
        snprintf(out->node, sizeof out->node, "%s", how.graph->nodes[of.first.node].name);
        code = fd_diagnose(&ask, &e, err);
        bool says_something = options->numerics == class_ || !is_rounding(&e.remaining[0].hypothesis);
        if (code == FD_OK && e.named && says_something)
            code = explains_most(&ask, &of, &e.remaining[0].hypothesis, &out->named, err);
    }
    fd_attribution_free(&of);
    return code;
}

static void take(fd_attribution_options *options, const fd_numerics_class *class_, const outcome *of,
                 fd_class_evidence *evidence) {
    if (class_ == options->numerics) return;
    *evidence = (fd_class_evidence){.kind = FD_EVIDENCE_BUG};
    snprintf(evidence->other, sizeof evidence->other, "%s", options->numerics->name);
    snprintf(evidence->node, sizeof evidence->node, "%s", of->node);
    options->numerics = class_;
}

/* Those that a table alone did not explain, by what they leave: with the wrong class that is the bug's error and the
 * class's. */
static void order_by_left(const double left[N_TIGHT], int order[N_TIGHT]) {
    for (int i = 0; i < N_TIGHT; i++) {
        int at = i;
        for (; at > 0 && left[i] < left[order[at - 1]]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
}

/* The table of faults in every tight class; then guesses, which are many, in those of them that leave least. */
fd_code fd_refute_class_by_bug(fd_attribution_options *options, fd_class_evidence *evidence, fd_error *err) {
    const fd_numerics_class *inferred = options->numerics;
    double left[N_TIGHT];
    int order[N_TIGHT];
    outcome of = {0};
    if (inferred->exact || inferred->u_out < 0x1p-24 || inferred->u_out > 0x1p-24) return FD_OK;
    if (is_tight(inferred)) {
        FD_TRY(try_class(options, inferred, true, &of, err));
        if (!of.found || of.named) return FD_OK;
    }
    for (int i = 0; i < N_TIGHT && !of.named; i++) {
        if (fd_numerics_class_find(tight[i]) == inferred) continue;
        FD_TRY(try_class(options, fd_numerics_class_find(tight[i]), true, &of, err));
        left[i] = of.left;
        if (of.named) take(options, fd_numerics_class_find(tight[i]), &of, evidence);
    }
    if (of.named || is_tight(inferred)) return FD_OK; /* guesses in that one come with the verdict */
    order_by_left(left, order);
    for (int i = 0; i < N_TIGHT && !of.named; i++) {
        FD_TRY(try_class(options, fd_numerics_class_find(tight[order[i]]), false, &of, err));
        if (of.named) take(options, fd_numerics_class_find(tight[order[i]]), &of, evidence);
    }
    return FD_OK;
}

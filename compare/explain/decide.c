#include "compare/explain/decide.h"

#include <math.h>
#include <stdio.h>

#include "compare/explain/cross_check.h"
#include "compare/explain/forms.h"
#include "compare/explain/projection.h"
#include "compare/explain/which_alone.h"

static bool one_position(const fd_trial *t) {
    return t->all.request->args.pos0 == 0 && t->all.request->args.n_pos == 1;
}

static void list_remaining(fd_trial *t, bool group_alone) {
    fd_explanation *out = t->out;
    for (int32_t i = 0; i < t->n; i++) {
        if (t->contenders[i].refuted || (group_alone && !t->contenders[i].in_group)) continue;
        if (out->n_remaining < FD_MAX_REMAINING) out->remaining[out->n_remaining] = t->contenders[i].fit;
        out->n_remaining++;
    }
}

/* What is the same at the end of a span may differ within. */
static fd_tells_apart inside_span(const fd_trial *t, fd_explanation *out) {
    snprintf(out->other, sizeof out->other, "%s", t->all.request->args.graph->nodes[t->span[0]].name);
    return FD_TELLS_SPAN;
}

static fd_code find_what_tells_apart(fd_trial *t, fd_error *err) {
    fd_explanation *out = t->out;
    const fd_graph *graph = t->all.request->args.graph;
    if (one_position(t) && !out->named) {
        out->tells_apart = FD_TELLS_SECOND_POSITION;
    } else if (out->n_remaining > 1) {
        int32_t node;
        FD_TRY(fd_where_they_differ(t, &out->remaining[0].hypothesis, &out->remaining[1].hypothesis, &node, err));
        out->tells_apart = node >= 0 ? FD_TELLS_NODE : t->n_span > 1 ? inside_span(t, out) : FD_TELLS_MORE_POSITIONS;
        if (node >= 0) snprintf(out->other, sizeof out->other, "%s", graph->nodes[node].name);
    } else if (t->n_span > 1 && !out->named) {
        out->tells_apart = inside_span(t, out);
    } else if (out->n_untried && !out->named) {
        out->tells_apart = FD_TELLS_LAYER;
    }
    return FD_OK;
}

static const fd_contender *best_left(const fd_trial *t) {
    for (int32_t i = 0; i < t->n; i++)
        if (!t->contenders[i].refuted) return &t->contenders[i];
    return NULL;
}

/* Through a span both give the values so nearly that nothing but the order of sums is left between them: Σ w·x is the same with the
 * weights in another order or the terms. */
#define SAME_SUM    2048.0
#define MOST_Z_SAME 0.25

static bool is_same_sum(const fd_trial *t, const fd_explain_fit *a, const fd_explain_fit *b) {
    const double most = t->out->unmodified.rms / SAME_SUM;
    return t->n_span > 1 && a->z <= MOST_Z_SAME && b->z <= MOST_Z_SAME && a->rms < most && b->rms < most;
}

/* How many of those left differ from the best. */
static fd_code group(fd_trial *t, const fd_contender *best, int32_t *n_apart, fd_error *err) {
    *n_apart = 0;
    for (int32_t i = 0; i < t->n; i++) {
        fd_contender *c = &t->contenders[i];
        c->in_group =
            !c->refuted && best &&
            (c == best || (fd_trial_is_fit(t, &c->fit) &&
                           fd_variant_equal(t->all.request, t->all.request->args.node, &c->variant, &best->variant)));
        c->in_group |= !c->refuted && best && is_same_sum(t, &c->fit, &best->fit);
        const bool form = !c->refuted && !c->in_group && best && fd_trial_is_fit(t, &best->fit) &&
                          fd_is_other_form(&best->fit, &c->fit);
        t->out->forms |= form;
        c->in_group |= form;
        if (!c->refuted && !c->in_group && best && fd_trial_is_fit(t, &c->fit))
            FD_TRY(fd_trial_same_without_steps(t, &best->h, &c->h, &c->in_group, err));
        *n_apart += !c->refuted && !c->in_group;
    }
    return FD_OK;
}

/* What leaves far more of the residual than the best is refuted, however wide the bounds are. */
static void refute_by_residual(fd_trial *t) {
    fd_explanation *out = t->out;
    if (!t->all.request->numerics || t->n == 0 || !fd_trial_is_fit(t, &t->contenders[0].fit)) return;
    const fd_explain_fit *best = &t->contenders[0].fit;
    t->op_refuted |= fd_fit_decides(best, &out->unmodified);
    for (int32_t i = 1; i < t->n; i++) t->contenders[i].refuted |= fd_fit_decides(best, &t->contenders[i].fit);
    if (!fd_trial_in_steps(t) || t->contenders[0].variant.state != FD_VARIANT_COMPUTED) return;
    /* steps leave much of what each explains: on the way from the best to another the candidate says which it is */
    fd_trial_rows from_best = t->all;
    from_best.plain.rows = t->contenders[0].variant.rows;
    for (int32_t i = 1; i < t->n && t->all.plain.tau; i++) {
        bool apart, same;
        fd_projection_tell_apart(&from_best, &t->contenders[i].variant, 0, &apart, &same);
        t->contenders[i].refuted |= apart;
    }
}

/* A number that is fitted to one element, or two, gives them whatever they are: others have to agree with it. */
enum { FEWEST_OF_FITTED = 3 };

static bool is_fitted_to_few(const fd_trial *t, const fd_contender *c) {
    const fd_node *node = t->all.request->args.node;
    const bool some = c->h.guess == FD_GUESS_FACTOR && c->h.node == node->id && !node->over_kv &&
                      c->h.end - c->h.first < fd_node_width(node) && fabs(c->h.value) > 0 && fabs(c->h.value + 1) > 0;
    return c->evidence < FEWEST_OF_FITTED && (some || (c->h.guess == FD_GUESS_CLAMP && c->h.node != node->id));
}

/* A limit stands in the op's own values (guess_elements.c), and is no number that was solved for: one element may show it. */
static bool is_read_off(const fd_trial *t, const fd_contender *c) {
    return c->h.guess == FD_GUESS_CLAMP && c->h.node == t->all.request->args.node->id && c->evidence > 0;
}

fd_code fd_decide(fd_trial *t, fd_error *err) {
    fd_explanation *out = t->out;
    t->op_refuted = fd_fit_clearly_beyond(&out->unmodified);
    refute_by_residual(t);
    if (t->n > 0 && fd_trial_is_fit(t, &t->contenders[0].fit)) FD_TRY(fd_cross_check(t, err));
    const fd_contender *best = best_left(t);
    int32_t n_apart;
    FD_TRY(group(t, best, &n_apart, err));
    bool nan_alone = best && best->evidence == 0 && isinf(out->unmodified.z);
    /* a choice that an unrecorded router made is right or wrong: that nothing is left of a few says little */
    bool few_choices = t->n_span > 1 && t->all.request->args.node->op == FD_OP_TOP_K;
    bool decided =
        best && !nan_alone && !few_choices && (fd_fit_decides(&best->fit, &out->unmodified) || is_read_off(t, best));
    bool little = best && ((best->evidence < FD_MIN_EVIDENCE && !decided) || is_fitted_to_few(t, best));
    out->n_apart = n_apart + 1;
    out->why = !t->op_refuted                             ? FD_UNNAMED_OP_FITS
               : !best || !fd_trial_is_fit(t, &best->fit) ? FD_UNNAMED_NONE_FITS
               : n_apart > 0                              ? FD_UNNAMED_SEVERAL_FIT
               : little                                   ? FD_UNNAMED_LITTLE_EVIDENCE
                                                          : FD_NAMED;
    out->named = out->why == FD_NAMED;
    for (int32_t i = 0; i < t->n; i++)
        if (t->contenders[i].refuted || (out->named && !t->contenders[i].in_group))
            fd_trial_note_runner_up(t, &t->contenders[i].fit);
    list_remaining(t, out->named);
    fd_name_forms(out, t->all.request->args.graph);
    if (out->named) FD_TRY(fd_say_which_alone(t, &out->remaining[0], err));
    return find_what_tells_apart(t, err);
}

#include "compare/report/text.h"

#include <stdio.h>
#include <string.h>

#include "compare/report/line.h"
#include "compare/report/remarks.h"
#include "compare/report/unnamed.h"

/* "Q8_0 [256, 768]" */
static void weight_shape(const char *dtype, int64_t n_row, int64_t n_col, char *to, size_t size) {
    size_t at = (size_t)snprintf(to, size, "%s%s[%lld", dtype, dtype[0] ? " " : "", (long long)n_row);
    if (at < size) snprintf(to + at, size - at, n_col ? ", %lld]" : "]", (long long)n_col);
}

static void zeros_text(const char *what, int64_t n, int64_t expected, const char *whose, char *to, size_t size) {
    to[0] = '\0';
    if (n > 0 && n != expected)
        snprintf(to, size, ", %lld %s zero (%lld in %s)", (long long)n, what, (long long)expected, whose);
}

/* Weights come before ops: what is wrong with them, whose rows they are, and which bug gives them. */
void fd_report_weights(FILE *to, const fd_verdict *v) {
    const fd_verdict_weights *w = &v->weights;
    const char *whose = w->against_model ? "the model" : "the reference";
    char held[64], expected[64], trailing[80], zero[80] = "", text[FD_UNNAMED_SIZE];
    weight_shape(w->dtype, w->n_row, w->n_col, held, sizeof held);
    weight_shape(w->expected_dtype, w->expected_n_row, w->expected_n_col, expected, sizeof expected);
    zeros_text("trailing rows are", w->n_trailing_zero_row, w->expected_trailing_zero_row, whose, trailing,
               sizeof trailing);
    if (w->n_zero_row != w->n_trailing_zero_row)
        zeros_text("rows are", w->n_zero_row, w->expected_zero_row, whose, zero, sizeof zero);
    if (strcmp(held, expected) == 0)
        fd_line(to, "weight", "%s, the %s's is not %s's%s%s", held, w->of_reference ? "reference" : "candidate", whose,
                w->node[0] ? "      read by " : "", w->node);
    else
        fd_line(to, "weight", "%s in the %s, %s in %s%s%s", held, w->of_reference ? "reference" : "candidate", expected,
                whose, w->node[0] ? "      read by " : "", w->node);
    if (w->first_row >= 0)
        fd_line(to, "rows", "%s%lld of %lld differ, first row %lld%s%s%s", w->rows_per_hash > 1 ? "at most " : "",
                (long long)w->n_row_differ, (long long)w->n_row, (long long)w->first_row,
                w->rows_per_hash > 1 ? " or soon after" : "", trailing, zero);
    if (w->match) fd_line(to, "holds", "%s", fd_weights_match_text(w, text));
    fd_line(to, "weights", "%d differ, %d agree with %s%s%s", w->n_differ, w->n_same, whose,
            w->others[0] ? "; also " : "", w->others);
    if (w->named)
        fd_line(to, "named", "%s  (%s)      %s %d of %d weights", w->summary, w->fault,
                w->by_values ? "by what it computed with" : "every hash of", w->n_explained, w->n_differ);
    else
        fd_line(to, "not named", "%s", fd_weights_unnamed_text(w, text));
    if (w->same_as[0]) fd_line(to, "the same as", "%s: the same bytes here", w->same_as);
    if (!v->replay.done) return;
    bool departs = v->replay.finding[0] != '\0';
    if (w->replayed)
        fd_line(to, "ops", "replayed with the %s's own weights: %s", w->of_reference ? "reference" : "candidate",
                departs ? "one departs all the same" : "every one is right by them");
    if (w->n_unjudged)
        fd_line(to, "ops", "%d node%s not judged: the weights that they read are unknown%s", w->n_unjudged,
                fd_plural(w->n_unjudged),
                departs ? "; of the others one departs" : "; the others are right by their inputs");
}

/* What is known of weights that do not differ. */
void fd_report_equal_weights(FILE *to, const fd_verdict *v) {
    const fd_verdict_weights *w = &v->weights;
    char unknown[64] = "";
    if (w->n_unknown) snprintf(unknown, sizeof unknown, ", %d not recorded", w->n_unknown);
    if (w->compared)
        fd_line(to, "weights", "%d agree with %s%s", w->n_same, w->against_model ? "the model" : "the reference",
                unknown);
    else if (v->divergence.kind == FD_DIVERGED_VALUES && strcmp(v->divergence.op, fd_op_name(FD_OP_MATMUL)) == 0)
        fd_line(to, "weights", "not recorded: a loader's bug would show as this op's");
}

/* "positions 12…15 of 16, steps 1…4 of the candidate's own: in its decode alone, its prefill is right here" */
void fd_report_extent(FILE *to, const fd_verdict_replay *p) {
    const fd_verdict_extent *e = &p->extent;
    const char *side = p->of_reference ? "reference" : "candidate";
    char positions[80], steps[80];
    if (e->n_beyond < 1) return;
    if (e->first == e->last)
        snprintf(positions, sizeof positions, "position %d alone of %d", e->first, e->n_judged);
    else if (e->n_beyond == e->last - e->first + 1 && e->last < e->n_judged) /* else some were not recorded */
        snprintf(positions, sizeof positions, "positions %d…%d of %d", e->first, e->last, e->n_judged);
    else
        snprintf(positions, sizeof positions, "%d of %d positions from %d to %d", e->n_beyond, e->n_judged, e->first,
                 e->last);
    if (e->first_step == e->last_step)
        snprintf(steps, sizeof steps, "the %s's own step %d", side, e->first_step);
    else
        snprintf(steps, sizeof steps, "the %s's own steps %d…%d", side, e->first_step, e->last_step);
    fd_line(to, "where", "%s, %s%s", positions, steps,
            e->only == FD_ONLY_IN_DECODE    ? ": in decode alone, prefill is right here"
            : e->only == FD_ONLY_IN_PREFILL ? ": in prefill alone, decode is right here"
                                            : "");
}

void fd_report_replayed(FILE *to, const fd_verdict *v) {
    const fd_verdict_replay *p = &v->replay;
    char c[40], y[40], overflow[FD_OVERFLOW_TEXT_SIZE];
    if (!p->finding[0]) return;
    fd_value_text(p->candidate, c, sizeof c);
    fd_value_text((double)(float)p->replayed, y, sizeof y); /* nine digits are enough next to a binary32 */
    fd_line(to, "replayed", "%s from the %s's own inputs, where it has %s     z %.3g   (noise would be z ≤ 1)", y,
            p->of_reference ? "reference" : "candidate", c, p->z);
    if (p->overflow.kind != FD_OVERFLOW_NONE) fd_line(to, "first NaN", "%s", fd_overflow_text(&p->overflow, overflow));
}

/* What replay says about the divergence, and about all other tensors. */
void fd_report_replay(FILE *to, const fd_verdict *v) {
    const fd_verdict_replay *p = &v->replay;
    if (p->finding[0]) {
        const char *both = p->finding[0] == 'B' ? " (both)" : "";
        char heads[48] = "", shares[96] = "";
        if (v->divergence.n_dim == 2)
            snprintf(heads, sizeof heads, " in %d head%s", p->n_slice_beyond, fd_plural(p->n_slice_beyond));
        if (p->shares_known)
            snprintf(shares, sizeof shares, "%.3g %%   propagated %.3g %%%s      ", 100 * p->introduced,
                     100 * p->propagated, both);
        fd_line(to, "introduced", "%s%lld of %lld elements beyond%s%s", shares, (long long)p->n_beyond,
                (long long)p->n_element, heads, p->n_nan_new ? "; NaN or Inf from finite inputs" : "");
        if (p->n_odd && p->left_usually > 0)
            fd_line(to, "left",
                    "%.1e of it, and too much in %d rows, where %s leaves %.1e as a rule: within the bounds, but no "
                    "rounding",
                    p->left, p->n_odd, p->numerics, p->left_usually);
        else if (p->n_odd)
            fd_line(to, "left",
                    "%.1e of it in %d rows, where %s leaves a millionth: within the bounds, but no rounding", p->left,
                    p->n_odd, p->numerics);
        if (p->span_first[0])
            fd_line(to, "span", "%s … %s: not recorded in between (%s); --tensors '%s' narrows it", p->span_first,
                    v->divergence.node, p->missing, p->tensors);
        if (p->not_finite[0] && strcmp(p->not_finite, v->divergence.node) != 0)
            fd_line(to, "not finite", "NaN or Inf from finite inputs, first at %s, position %d", p->not_finite,
                    p->not_finite_pos);
        fd_line(
            to, "before it",
            "%lld tensor%s within rounding        elsewhere   %lld within, %lld inherited, %lld more introduced%s%s",
            (long long)p->n_before, fd_plural(p->n_before),
            (long long)(p->n_noise - p->n_before < 0 ? 0 : p->n_noise - p->n_before),
            (long long)(p->n_inherited + p->n_amplifier), (long long)(p->n_introduced - 1),
            p->next[0] ? ", first at " : "", p->next);
    }
    if (p->noisiest_z >= 0)
        fd_line(to, "noise", "largest z %.2g, at %s, among those within", p->noisiest_z, p->noisiest);
    fd_line(to, "class", "%s (%s)", p->numerics, p->source);
    char evidence[FD_REMARK_SIZE];
    if (p->evidence.kind) fd_line(to, "", "%s", fd_class_evidence_text(&p->evidence, evidence));
}

static void put_fit(FILE *to, const char *head, const fd_explain_fit *fit) {
    char ulp[40] = "";
    if (fit->ulp < 1 << 20) snprintf(ulp, sizeof ulp, ", %.0f ulp", fit->ulp);
    fd_line(to, head, "%s  (%s%s%s)      residual z %.3g%s", fit->summary, fit->name, fit->at[0] ? " at " : "", fit->at,
            fit->z, ulp);
}

/* The bug, or what may be it and what would tell. */
void fd_report_explanation(FILE *to, const fd_explanation *e) {
    enum { MOST = 3 };
    char text[FD_UNNAMED_SIZE];
    if (e->slope_rows) {
        const fd_explain_fit *fit = &e->remaining[0];
        if (!e->named) fd_line(to, "not named", "what is left goes along a bug, but not to its size, or along several");
        fd_line(to, e->named ? "named" : "possible", "%s  (%s)", fit->summary, fit->name);
        fd_line(to, "", "%s, but its errors are %.2f ± %.2f of this bug's, over %d rows; of rounding's they would be 0",
                e->unmodified.z > 1 ? "the class is not known" : "within the bounds", e->slope, e->slope_error,
                e->slope_rows);
        for (int32_t i = 1; i < e->n_remaining && i < MOST; i++)
            fd_line(to, "or", "%s  (%s)", e->remaining[i].summary, e->remaining[i].name);
    } else if (e->named) {
        put_fit(to, "named", &e->remaining[0]);
        for (int32_t i = 1; i < e->n_remaining && i < MOST; i++)
            put_fit(to, e->forms ? "or" : "the same as", &e->remaining[i]);
        if (e->runner_up.name[0]) put_fit(to, "runner-up", &e->runner_up);
    } else {
        fd_line(to, "not named", "%s", fd_unnamed_text(e, text));
        for (int32_t i = 0; i < e->n_remaining && i < MOST; i++) put_fit(to, "possible", &e->remaining[i]);
    }
    if (e->n_remaining > MOST) fd_line(to, "", "and %d more", e->n_remaining - MOST);
}

void fd_report_tells_apart(FILE *to, const fd_explanation *e) {
    char text[FD_UNNAMED_SIZE];
    if (e->tells_apart) fd_line(to, "tells apart", "%s", fd_tells_apart_text(e, text));
}

static void layers_of(const fd_cause *c, char *to, size_t size) {
    bool several = strpbrk(c->layers, ",\xe2") != NULL; /* a comma, or the first byte of … */
    snprintf(to, size, "%d tensor%s%s%s", c->n_node, fd_plural(c->n_node),
             !c->layers[0] ? ""
             : several     ? ", layers "
                           : ", layer ",
             c->layers);
}

/* Where else that bug is, and the others. */
void fd_report_causes(FILE *to, const fd_causes *r) {
    char where[96];
    if (r->first.n_node > 1) {
        layers_of(&r->first, where, sizeof where);
        fd_line(to, r->first.name[0] ? "the same bug" : "likewise", "in %s", where);
    }
    for (int32_t i = 0; i < r->n_also && i < FD_MAX_ALSO; i++) {
        const fd_cause *c = &r->also[i];
        layers_of(c, where, sizeof where);
        if (c->name[0])
            fd_line(to, i ? "" : "more bugs", "%s: %s  (%s)      %s", c->node, c->summary, c->name, where);
        else
            fd_line(to, i ? "" : "more bugs", "%s: introduced there too, not named      %s", c->node, where);
    }
    if (r->n_also > FD_MAX_ALSO) fd_line(to, "", "and %d more", r->n_also - FD_MAX_ALSO);
}

/* "285 'ed'" */
static void token_text(const fd_verdict *v, int32_t token, char *to, size_t size) {
    const char *text = fd_measure_token_text(&v->measures, token);
    snprintf(to, size, text[0] ? "%d '%s'" : "%d", token, text);
}

/* Best tokens that differ, and where the runs parted by them. */
void fd_report_flip(FILE *to, const fd_verdict *v) {
    const fd_verdict_flip *c = &v->flip;
    char margins[320] = "", ref[64], cand[64];
    token_text(v, c->ref_token, ref, sizeof ref);
    token_text(v, c->cand_token, cand, sizeof cand);
    if (c->n_flip)
        snprintf(margins, sizeof margins, "reference %s by %.3g, candidate %s by %.3g, τ %.3g", ref, c->ref_margin,
                 cand, c->cand_margin, c->tau);
    if (c->n_flip)
        fd_line(to, "best token", "another at %d of %d positions, %d within both sides' τ; at position %d: %s",
                c->n_flip, c->n_pos, c->n_flip_noise, c->pos, margins);
    if (c->fed && c->chosen)
        fd_line(to, "tokens",
                "part at position %d, each side's own choice; from there each was replayed on its own tokens",
                c->fed_pos);
    else if (c->fed && c->choice_known)
        fd_line(to, "tokens",
                "part at position %d, and not by each side's best logit: sampled, forced, or an argmax that is "
                "wrong",
                c->fed_pos);
}

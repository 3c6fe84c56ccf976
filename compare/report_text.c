#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "compare/report.h"

enum { MOST_NAMES = 12 }; /* of missing tensors: more would push the verdict off the screen; --json has them all */

void fd_value_text(double value, char *to, size_t size) {
    if (isnan(value))
        snprintf(to, size, "nan"); /* printf would add a sign that means nothing */
    else
        snprintf(to, size, (double)(float)value == value ? "%.9g" : "%.17g", value);
}

static const char *plural(int64_t n) {
    return n == 1 ? "" : "s";
}

/* Names and paths come from files: control characters must not reach a terminal. */
static void put_clean(FILE *to, const char *text) {
    for (; *text; text++) fputc((unsigned char)*text < 0x20 || *text == 0x7f ? '?' : *text, to);
}

/* "  head        text" */
static void line(FILE *to, const char *head, const char *format, ...) FD_PRINTF(3, 4);
static void line(FILE *to, const char *head, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(to, "  %-11s ", head);
    put_clean(to, text);
    fputc('\n', to);
}

/* Where the first differing element is, or nothing when the elements are not there. */
static void place_text(const fd_divergence *d, int64_t index, char *to, size_t size) {
    to[0] = '\0';
    if (!d->has_values) return;
    char place[128];
    fd_index_text(d->node, d->n_dim, d->dims, d->over_kv, index, place, sizeof place);
    snprintf(to, size, " · %s", place);
}

void fd_report_headline(const fd_verdict *v, char *to, size_t size) {
    const fd_divergence *d = &v->divergence;
    char place[160];
    if (v->weights.n_differ) {
        const fd_verdict_weights *w = &v->weights;
        size_t at = (size_t)snprintf(to, size, "DIVERGED at weight %s", w->name);
        if (w->first_row >= 0 && at < size)
            snprintf(to + at, size - at, "      row %lld of %lld", (long long)w->first_row, (long long)w->n_row);
    } else if (v->status == FD_DIVERGED) {
        place_text(d, d->diff.first.index, place, sizeof place);
        snprintf(to, size, "DIVERGED at %s      step %d (%s) · position %d%s", d->node, d->step,
                 fd_step_kind_name(d->step_kind), d->pos, place);
    } else if (v->status == FD_INCOMPLETE) {
        snprintf(to, size, "INCOMPLETE  %s", v->reasons[0]);
    } else if (v->status == FD_NOISE) {
        snprintf(to, size, "NOISE       %lld tensor%s over %lld position%s differ no more than %s rounding explains",
                 (long long)v->replay.n_tensor, plural(v->replay.n_tensor), (long long)v->n_pos, plural(v->n_pos),
                 v->replay.numerics);
    } else {
        snprintf(to, size, "IDENTICAL   %lld tensor%s in %lld step%s over %lld position%s, every bit",
                 (long long)v->n_compared, plural(v->n_compared), (long long)v->n_step, plural(v->n_step),
                 (long long)v->n_pos, plural(v->n_pos));
    }
}

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
static void put_weights(FILE *to, const fd_verdict *v) {
    const fd_verdict_weights *w = &v->weights;
    const char *whose = w->against_model ? "the model" : "the reference";
    char held[64], expected[64], trailing[80], zero[80] = "";
    weight_shape(w->dtype, w->n_row, w->n_col, held, sizeof held);
    weight_shape(w->expected_dtype, w->expected_n_row, w->expected_n_col, expected, sizeof expected);
    zeros_text("trailing rows are", w->n_trailing_zero_row, w->expected_trailing_zero_row, whose, trailing,
               sizeof trailing);
    if (w->n_zero_row != w->n_trailing_zero_row)
        zeros_text("rows are", w->n_zero_row, w->expected_zero_row, whose, zero, sizeof zero);
    if (strcmp(held, expected) == 0)
        line(to, "weight", "%s, the %s's is not %s's%s%s", held, w->of_reference ? "reference" : "candidate", whose,
             w->node[0] ? "      read by " : "", w->node);
    else
        line(to, "weight", "%s in the %s, %s in %s%s%s", held, w->of_reference ? "reference" : "candidate", expected,
             whose, w->node[0] ? "      read by " : "", w->node);
    if (w->first_row >= 0)
        line(to, "rows", "%s%lld of %lld differ, first row %lld%s%s%s",
             w->rows_per_hash > 1 ? "at most " : "", (long long)w->n_row_differ, (long long)w->n_row,
             (long long)w->first_row, w->rows_per_hash > 1 ? " or soon after" : "", trailing, zero);
    if (w->match[0]) line(to, "holds", "%s", w->match);
    line(to, "weights", "%d differ, %d agree with %s%s%s", w->n_differ, w->n_same, whose, w->others[0] ? "; also " : "",
         w->others);
    if (w->named)
        line(to, "named", "%s  (%s)      every hash of %d of %d weights", w->summary, w->fault, w->n_explained,
             w->n_differ);
    else
        line(to, "not named", "%s", w->reason);
    if (w->same_as[0]) line(to, "the same as", "%s: the same bytes here", w->same_as);
    if (!v->replay.done) return;
    bool departs = v->replay.finding[0] != '\0';
    if (w->replayed)
        line(to, "ops", "replayed with the %s's own weights: %s", w->of_reference ? "reference" : "candidate",
             departs ? "one departs beside them" : "every one is right by them");
    if (w->n_unjudged)
        line(to, "ops", "%d node%s not judged: nobody knows the weights that they read%s", w->n_unjudged,
             plural(w->n_unjudged), departs ? "; of the others one departs" : "; the others are right by their inputs");
}

static void put_op(FILE *to, const fd_divergence *d) {
    char text[512];
    size_t at = 0;
    if (d->op[0]) {
        at += (size_t)snprintf(text, sizeof text, "%s", d->op);
        if (d->attributes[0]) at += (size_t)snprintf(text + at, sizeof text - at, " (%s)", d->attributes);
    } else {
        at += (size_t)snprintf(text, sizeof text, "not stated in the trace");
    }
    for (int32_t i = 0; i < d->n_input && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s — %s", i ? ", " : "      inputs: ", d->inputs[i].name,
                               fd_equality_name(d->inputs[i].equality));
    line(to, "op", "%s", text);
}

/* "3 ulp", "12 ulp of f16"; nothing when one of the two is no number, or when they are so far apart (an eighth of their
 * size, or of different sign) that counting representable values between them says nothing. */
static void ulp_text(const fd_tensor_diff *diff, uint64_t ulp, char *to, size_t size) {
    to[0] = '\0';
    const fd_dtype_info *type = fd_dtype_get(diff->grid);
    if (ulp == FD_ULP_NONE || ulp > (diff->grid == FD_F32 ? 1u << 20 : 1u << 7)) return;
    if (diff->grid == FD_F32 || !type)
        snprintf(to, size, "   %llu ulp", (unsigned long long)ulp);
    else
        snprintf(to, size, "   %llu ulp of %s", (unsigned long long)ulp, type->name);
}

static void put_not_finite(FILE *to, const fd_tensor_diff *t) {
    const struct {
        int64_t n;
        const char *what;
    } counts[] = {{t->n_nan_new, "NaN in the candidate alone"}, {t->n_nan_lost, "NaN in the reference alone"},
                  {t->n_inf_new, "Inf in the candidate alone"}, {t->n_inf_lost, "Inf in the reference alone"},
                  {t->n_inf_sign, "Inf of the opposite sign"},  {t->n_nan_same, "NaN on both sides"}};
    char text[256];
    size_t at = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && at < sizeof text; i++)
        if (counts[i].n)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%lld %s", at ? ", " : "", (long long)counts[i].n,
                                   counts[i].what);
    if (at) line(to, "not finite", "%s", text);
}

static void put_values(FILE *to, const fd_divergence *d) {
    const fd_tensor_diff *t = &d->diff;
    char ref[40], cand[40], ulp[48], delta[48] = "", place[160];
    fd_value_text(t->first.ref, ref, sizeof ref);
    fd_value_text(t->first.cand, cand, sizeof cand);
    ulp_text(t, t->first.ulp, ulp, sizeof ulp);
    if (t->first.ulp != FD_ULP_NONE) snprintf(delta, sizeof delta, "     |Δ| %.4g", fabs(t->first.cand - t->first.ref));
    line(to, "reference", "%s     candidate  %s%s%s", ref, cand, delta, ulp);
    if (t->n_differ > 1 && t->largest.index >= 0 && t->largest.index != t->first.index) {
        fd_value_text(t->largest.ref, ref, sizeof ref);
        fd_value_text(t->largest.cand, cand, sizeof cand);
        ulp_text(t, t->largest.ulp, ulp, sizeof ulp);
        place_text(d, t->largest.index, place, sizeof place);
        line(to, "largest", "|Δ| %.4g%s%s: %s against %s", t->largest_abs, ulp, place, ref, cand);
    }
    line(to, "elements", "%lld of %lld differ at this position", (long long)t->n_differ, (long long)t->n);
    put_not_finite(to, t);
}

/* What replay says about the divergence, and about all other tensors. */
static void put_replay(FILE *to, const fd_verdict *v) {
    const fd_verdict_replay *p = &v->replay;
    if (p->finding[0]) {
        const char *both = p->finding[0] == 'B' ? " (both)" : "";
        char c[40], y[40], heads[48] = "", shares[96] = "";
        fd_value_text(p->candidate, c, sizeof c);
        fd_value_text((double)(float)p->replayed, y, sizeof y); /* nine digits are enough beside a binary32 */
        line(to, "replayed", "%s from the %s's own inputs, where it has %s     z %.3g   (noise would be z ≤ 1)", y,
             p->of_reference ? "reference" : "candidate", c, p->z);
        if (v->divergence.n_dim == 2)
            snprintf(heads, sizeof heads, " in %d head%s", p->n_slice_beyond, plural(p->n_slice_beyond));
        if (p->shares_known)
            snprintf(shares, sizeof shares, "%.3g %%   propagated %.3g %%%s      ", 100 * p->introduced,
                     100 * p->propagated, both);
        line(to, "introduced", "%s%lld of %lld elements beyond%s%s", shares, (long long)p->n_beyond,
             (long long)p->n_element, heads, p->n_nan_new ? "; NaN or Inf from finite inputs" : "");
        if (p->span_first[0])
            line(to, "span", "%s … %s: not recorded in between (%s); --tensors '%s' narrows it", p->span_first,
                 v->divergence.node, p->missing, p->tensors);
        if (p->not_finite[0] && strcmp(p->not_finite, v->divergence.node) != 0)
            line(to, "not finite", "NaN or Inf from finite inputs, first at %s, position %d", p->not_finite,
                 p->not_finite_pos);
        line(to, "before it",
             "%lld tensor%s within rounding        elsewhere   %lld within, %lld inherited, %lld more introduced%s%s",
             (long long)p->n_before, plural(p->n_before),
             (long long)(p->n_noise - p->n_before < 0 ? 0 : p->n_noise - p->n_before),
             (long long)(p->n_inherited + p->n_amplifier), (long long)(p->n_introduced - 1),
             p->next[0] ? ", first at " : "", p->next);
    }
    if (p->noisiest_z >= 0) line(to, "noise", "largest z %.2g, at %s, among those within", p->noisiest_z, p->noisiest);
    line(to, "class", "%s (%s)", p->numerics, p->source);
}

static void put_fit(FILE *to, const char *head, const fd_explain_fit *fit) {
    char ulp[40] = "";
    if (fit->ulp < 1 << 20) snprintf(ulp, sizeof ulp, ", %.0f ulp", fit->ulp);
    line(to, head, "%s  (%s)      residual z %.3g%s", fit->fault->summary, fit->fault->name, fit->z, ulp);
}

/* The bug, or what may be it and what would tell. */
static void put_explanation(FILE *to, const fd_explanation *e) {
    enum { MOST = 3 };
    if (e->named) {
        put_fit(to, "named", &e->remaining[0]);
        for (int32_t i = 1; i < e->n_remaining && i < MOST; i++) put_fit(to, "the same as", &e->remaining[i]);
        if (e->runner_up.fault) put_fit(to, "runner-up", &e->runner_up);
    } else {
        line(to, "not named", "%s", e->reason);
        for (int32_t i = 0; i < e->n_remaining && i < MOST; i++) put_fit(to, "possible", &e->remaining[i]);
    }
    if (e->n_remaining > MOST) line(to, "", "and %d more", e->n_remaining - MOST);
    if (e->next[0]) line(to, "tells apart", "%s", e->next);
}

static void layers_of(const fd_same_cause *c, char *to, size_t size) {
    bool several = strpbrk(c->layers, ",\xe2") != NULL; /* a comma, or the first byte of … */
    snprintf(to, size, "%d tensor%s%s%s", c->n_node, plural(c->n_node),
             !c->layers[0] ? "" : several ? ", layers " : ", layer ", c->layers);
}

/* Where else that bug is, and the others. */
static void put_rest(FILE *to, const fd_rest *r) {
    char where[96];
        if (r->same.n_node > 1) {
        layers_of(&r->same, where, sizeof where);
        line(to, r->same.fault ? "the same bug" : "likewise", "in %s", where);
    }
    for (int32_t i = 0; i < r->n_also && i < FD_MAX_ALSO; i++) {
        const fd_same_cause *c = &r->also[i];
        layers_of(c, where, sizeof where);
        if (c->fault)
            line(to, i ? "" : "more bugs", "%s: %s  (%s)      %s", c->node, c->fault->summary, c->fault->name, where);
        else
            line(to, i ? "" : "more bugs", "%s: introduced there too, not named      %s", c->node, where);
    }
    if (r->n_also > FD_MAX_ALSO) line(to, "", "and %d more", r->n_also - FD_MAX_ALSO);
}

static void put_divergence(FILE *to, const fd_verdict *v) {
    const fd_divergence *d = &v->divergence;
    if (d->kind == FD_DIVERGED_WEIGHTS) return;
    if (v->weights.n_differ) {
        char place[160];
        place_text(d, d->diff.first.index, place, sizeof place);
        line(to, v->replay.finding[0] ? "departs" : "then", "at %s      step %d (%s) · position %d%s", d->node, d->step,
             fd_step_kind_name(d->step_kind), d->pos, place);
    }
    if (d->kind == FD_DIVERGED_TOKENS) {
        line(to, "tokens", "reference %d     candidate %d: the runs were fed different tokens", d->ref_token,
             d->cand_token);
    } else {
        put_op(to, d);
        if (d->kind == FD_DIVERGED_SHAPE)
            line(to, "shape", "reference %s     candidate %s", d->ref_shape, d->cand_shape);
        else if (d->has_values)
            put_values(to, d);
        else if (v->replay.finding[0])
            line(to, "elements", "the reference has none to set beside them");
        else
            line(to, "elements", "not recorded on both sides: the fingerprints differ");
    }
    if (v->replay.finding[0]) return; /* put_replay counts by finding instead */
    char after[128] = "not known: both runs were stopped here";
    if (v->after_known)
        snprintf(after, sizeof after, "%lld tensor%s differ%s, %lld identical", (long long)v->n_after_differ,
                 plural(v->n_after_differ), v->n_after_differ == 1 ? "s" : "", (long long)v->n_after_identical);
    line(to, "before it", "%lld tensor%s identical        after it   %s", (long long)v->n_before, plural(v->n_before),
         after);
}

/* Best tokens that differ, and where the runs parted by them. */
static void put_choice(FILE *to, const fd_verdict *v) {
    const fd_verdict_choice *c = &v->choice;
    char margins[192] = "";
    if (c->n_flip)
        snprintf(margins, sizeof margins, "reference %d by %.3g, candidate %d by %.3g, τ %.3g", c->ref_token,
                 c->ref_margin, c->cand_token, c->cand_margin, c->tau);
    if (c->n_flip)
        line(to, "best token", "another at %d of %d positions, %d within both sides' τ; at position %d: %s", c->n_flip,
             c->n_pos, c->n_flip_noise, c->pos, margins);
    if (c->fed && c->chosen)
        line(to, "tokens", "part at position %d, each side's own choice; from there each was replayed on its own tokens",
             c->fed_pos);
    else if (c->fed && c->choice_known)
        line(to, "tokens", "part at position %d, and not by each side's best logit: sampled, forced, or an argmax that is "
             "wrong", c->fed_pos);
}

/* What is known of weights that do not differ. */
static void put_equal_weights(FILE *to, const fd_verdict *v) {
    const fd_verdict_weights *w = &v->weights;
    char unknown[64] = "";
    if (w->n_unknown) snprintf(unknown, sizeof unknown, ", %d not recorded", w->n_unknown);
    if (w->compared)
        line(to, "weights", "%d agree with %s%s", w->n_same, w->against_model ? "the model" : "the reference", unknown);
    else if (v->divergence.kind == FD_DIVERGED_VALUES && strcmp(v->divergence.op, fd_op_name(FD_OP_MATMUL)) == 0)
        line(to, "weights", "not recorded: a loader's bug would show as this op's");
}

static void put_missing(FILE *to, const fd_verdict *v) {
    static const char *const why[] = {"only in the reference", "only in the candidate", "not recorded on both sides"};
    for (int32_t i = 0; i < v->n_missing && i < MOST_NAMES; i++) {
        const fd_missing *m = &v->missing[i];
        line(to, i ? "" : "not seen", "%s: %s, %d position%s%s", m->name, why[m->why], m->n_pos, plural(m->n_pos),
             m->allowed ? " (allowed)" : "");
    }
    if (v->n_missing > MOST_NAMES) line(to, "", "and %d more (--json lists all)", v->n_missing - MOST_NAMES);
}

/* A spec already says backend and numerics, and which fault; of engines, other people's have a name worth saying. */
static void put_side(FILE *to, const char *role, const fd_verdict_side *s) {
    char what[160] = "", fault[160] = "";
    bool foreign = s->producer[0] && strncmp(s->producer, "firstdiff ", 10) != 0, said = s->backend[0] || s->numerics[0];
    size_t n = strlen(s->backend);
    bool spec = n && strncmp(s->label, s->backend, n) == 0 && s->label[n] == ':';
    if (!spec && (foreign || said))
        snprintf(what, sizeof what, ": %s%s%s%s%s", foreign ? s->producer : "", foreign && said ? ", " : "", s->backend,
                 s->backend[0] && s->numerics[0] ? " " : "", s->numerics);
    if (s->fault[0] && !strstr(s->label, s->fault)) snprintf(fault, sizeof fault, ", fault %s", s->fault);
    line(to, role, "%s%s%s%s%s", s->label, what, s->device[0] ? ", " : "", s->device, fault);
}

void fd_report_text(FILE *to, const fd_verdict *v, bool colour) {
    char text[1024];
    static const char *const colours[] = {"\033[1;32m", "\033[1;31m", "\033[1;33m", "\033[1;32m"};
    fd_report_headline(v, text, sizeof text);
    if (colour) fputs(colours[v->status], to);
    put_clean(to, text);
    fprintf(to, colour ? "\033[0m\n" : "\n");
    if (v->moved) line(to, "since then", "%s", v->since);
    if (v->weights.n_differ) put_weights(to, v);
    if (v->status == FD_DIVERGED) put_divergence(to, v);
    if (v->replay.done) put_replay(to, v);
    if (v->explained) put_explanation(to, &v->explanation);
    if (v->explained) put_rest(to, &v->rest);
    if (!v->weights.n_differ) put_equal_weights(to, v);
    put_choice(to, v);
    put_side(to, "ref", &v->ref);
    put_side(to, "cand", &v->cand);
    put_missing(to, v);
    for (int32_t i = v->status == FD_INCOMPLETE ? 1 : 0; i < v->n_reason && i < FD_MAX_REASONS; i++)
        line(to, "incomplete", "%s", v->reasons[i]);
    if (v->status != FD_DIVERGED && v->n_compared && v->n_by_fingerprint)
        line(to, "compared", "%lld tensor%s, %lld by fingerprint", (long long)v->n_compared, plural(v->n_compared),
             (long long)v->n_by_fingerprint);
    if (v->n_compared > v->n_by_fingerprint && (v->grid == FD_F16 || v->grid == FD_BF16))
        line(to, "note", "rounded to %s where a side is", fd_dtype_get(v->grid)->name);
    for (int32_t i = 0; i < v->n_note && i < FD_MAX_REASONS; i++) line(to, "note", "%s", v->notes[i]);
    if (v->next[0]) line(to, "next", "%s", v->next);
}

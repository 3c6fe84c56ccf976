#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/report/baseline.h"
#include "compare/describe.h"
#include "compare/report/line.h"
#include "compare/report/remarks.h"
#include "compare/report/report.h"
#include "compare/report/text.h"

enum {
    MOST_LINES = 12,
    MOST_NAMES = 24
}; /* of missing tensors: more would push the verdict off the screen; --json has them all */

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
    char place[160], reason[FD_REMARK_SIZE];
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
        snprintf(to, size, "INCOMPLETE  %s", fd_reason_text(v, 0, reason));
    } else if (v->status == FD_CHECK_DUMP) {
        snprintf(to, size, "CHECK THE DUMP FIRST  %s was not recorded as it was used; all else is within rounding",
                 v->dump.kinds[0].node);
    } else if (v->status == FD_NOISE) {
        snprintf(to, size, "NOISE       %lld tensor%s over %lld position%s differ no more than %s rounding explains",
                 (long long)v->replay.n_tensor, fd_plural(v->replay.n_tensor), (long long)v->counts.n_pos,
                 fd_plural(v->counts.n_pos), v->replay.numerics);
    } else {
        snprintf(to, size, "IDENTICAL   %lld tensor%s in %lld step%s over %lld position%s, every bit",
                 (long long)v->counts.n_compared, fd_plural(v->counts.n_compared), (long long)v->counts.n_step,
                 fd_plural(v->counts.n_step), (long long)v->counts.n_pos, fd_plural(v->counts.n_pos));
    }
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
    fd_line(to, "op", "%s", text);
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
    if (at) fd_line(to, "not finite", "%s", text);
}

static void put_first_value(FILE *to, const fd_divergence *d) {
    const fd_tensor_diff *t = &d->diff;
    char ref[40], cand[40], ulp[48], delta[48] = "";
    fd_value_text(t->first.ref, ref, sizeof ref);
    fd_value_text(t->first.cand, cand, sizeof cand);
    ulp_text(t, t->first.ulp, ulp, sizeof ulp);
    if (t->first.ulp != FD_ULP_NONE) snprintf(delta, sizeof delta, "     |Δ| %.4g", fabs(t->first.cand - t->first.ref));
    fd_line(to, "reference", "%s     candidate  %s%s%s", ref, cand, delta, ulp);
}

static void put_other_values(FILE *to, const fd_divergence *d) {
    const fd_tensor_diff *t = &d->diff;
    char ref[40], cand[40], ulp[48], place[160];
    if (t->n_differ > 1 && t->largest.index >= 0 && t->largest.index != t->first.index) {
        fd_value_text(t->largest.ref, ref, sizeof ref);
        fd_value_text(t->largest.cand, cand, sizeof cand);
        ulp_text(t, t->largest.ulp, ulp, sizeof ulp);
        place_text(d, t->largest.index, place, sizeof place);
        fd_line(to, "largest", "|Δ| %.4g%s%s: %s against %s", t->largest_abs, ulp, place, ref, cand);
    }
    fd_line(to, "elements", "%lld of %lld differ at this position", (long long)t->n_differ, (long long)t->n);
    put_not_finite(to, t);
}

static bool is_of_op(const fd_divergence *d) {
    return d->kind == FD_DIVERGED_VALUES || d->kind == FD_DIVERGED_SHAPE;
}

/* Where and what, in few lines. */
static void put_divergence(FILE *to, const fd_verdict *v) {
    const fd_divergence *d = &v->divergence;
    if (d->kind == FD_DIVERGED_WEIGHTS) return;
    if (v->weights.n_differ) {
        char place[160];
        place_text(d, d->diff.first.index, place, sizeof place);
        fd_line(to, v->replay.finding[0] ? "departs" : "then", "at %s      step %d (%s) · position %d%s", d->node,
                d->step, fd_step_kind_name(d->step_kind), d->pos, place);
    }
    if (d->kind == FD_DIVERGED_TOKENS)
        fd_line(to, "tokens", "reference %d     candidate %d: the runs were fed different tokens", d->ref_token,
                d->cand_token);
    if (!is_of_op(d)) return;
    put_op(to, d);
    if (d->kind == FD_DIVERGED_SHAPE)
        fd_line(to, "shape", "reference %s     candidate %s", d->ref_shape, d->cand_shape);
    else if (d->has_values)
        put_first_value(to, d);
    else if (v->replay.finding[0])
        fd_line(to, "elements", "the reference has none to compare them with");
    else
        fd_line(to, "elements", "not recorded on both sides: the fingerprints differ");
}

/* How many of its elements, and of the other tensors. */
static void put_counts(FILE *to, const fd_verdict *v) {
    const fd_divergence *d = &v->divergence;
    if (d->kind == FD_DIVERGED_WEIGHTS) return;
    if (d->kind == FD_DIVERGED_VALUES && d->has_values) put_other_values(to, d);
    if (v->replay.finding[0]) return; /* fd_report_replay counts by finding instead */
    char after[128] = "not known: both runs were stopped here";
    if (v->counts.after_known)
        snprintf(after, sizeof after, "%lld tensor%s differ%s, %lld identical", (long long)v->counts.n_after_differ,
                 fd_plural(v->counts.n_after_differ), v->counts.n_after_differ == 1 ? "s" : "",
                 (long long)v->counts.n_after_identical);
    fd_line(to, "before it", "%lld tensor%s identical        after it   %s", (long long)v->counts.n_before,
            fd_plural(v->counts.n_before), after);
}

/* Same reason, and names that are one but for the layer. */
static bool is_like(const fd_missing *a, const fd_missing *b) {
    const char *x = a->name, *y = b->name;
    if (a->why != b->why || a->n_pos != b->n_pos || a->allowed != b->allowed) return false;
    if (strncmp(x, "blk.", 4) != 0 || strncmp(y, "blk.", 4) != 0) return false;
    return strcmp(x + 4 + strspn(x + 4, "0123456789"), y + 4 + strspn(y + 4, "0123456789")) == 0;
}

/* How many of the tensors are like this one; -1 where an earlier one is, which counts it. */
static int32_t count_like(const fd_verdict *v, int32_t at) {
    int32_t n = 0;
    for (int32_t k = 0; k < v->n_missing; k++) {
        if (k == at || !is_like(&v->missing[k], &v->missing[at])) continue;
        if (k < at) return -1;
        n++;
    }
    return n;
}

/* "blk.0." of "blk.0.ffn_inp" */
static size_t layer_prefix(const char *name) {
    return strncmp(name, "blk.", 4) == 0 ? 5 + strspn(name + 4, "0123456789") : 0;
}

static bool same_line(const fd_missing *a, const fd_missing *b) {
    size_t n = layer_prefix(a->name);
    return a->why == b->why && a->n_pos == b->n_pos && a->allowed == b->allowed && n == layer_prefix(b->name) &&
           strncmp(a->name, b->name, n) == 0;
}

/* A line for those of one layer that are missing for one reason, at as many positions and in as many other layers. */
static void put_missing(FILE *to, const fd_verdict *v) {
    static const char *const why[] = {"only in the reference", "only in the candidate", "not recorded on both sides"};
    int32_t n_line = 0, n_shown = 0;
    for (int32_t i = 0; i < v->n_missing && n_line < MOST_LINES;) {
        const fd_missing *first = &v->missing[i];
        int32_t n_like = count_like(v, i), n_name = 0;
        if (n_like < 0) { /* an earlier line counted it */
            i++;
            continue;
        }
        char names[MOST_NAMES * (sizeof first->name + 2)], like[64] = "";
        size_t n = 0;
        for (; i < v->n_missing && n_name < MOST_NAMES; i++) {
            const fd_missing *m = &v->missing[i];
            int32_t n_more = count_like(v, i);
            if (n_more < 0) continue;
            if (n_more != n_like || !same_line(m, first)) break;
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "",
                                  n ? m->name + layer_prefix(m->name) : m->name);
            n_shown += 1 + n_like;
            n_name++;
        }
        if (n_like) snprintf(like, sizeof like, " and in %d more layer%s", n_like, fd_plural(n_like));
        fd_line(to, n_line++ ? "" : "not seen", "%s%s: %s, %d position%s%s", names, like, why[first->why], first->n_pos,
                fd_plural(first->n_pos), first->allowed ? " (allowed)" : "");
    }
    if (v->n_missing > n_shown) fd_line(to, "", "and %d more (--json lists all)", v->n_missing - n_shown);
}

/* A spec already says backend and numerics, and which fault; of engines, other people's have a name worth saying. */
static void put_side(FILE *to, const char *role, const fd_verdict_side *s) {
    char what[160] = "", fault[160] = "";
    bool foreign = s->producer[0] && strncmp(s->producer, "firstdiff ", 10) != 0,
         said = s->backend[0] || s->numerics[0];
    size_t n = strlen(s->backend);
    bool spec = n && strncmp(s->label, s->backend, n) == 0 && s->label[n] == ':';
    if (!spec && (foreign || said))
        snprintf(what, sizeof what, ": %s%s%s%s%s", foreign ? s->producer : "", foreign && said ? ", " : "", s->backend,
                 s->backend[0] && s->numerics[0] ? " " : "", s->numerics);
    if (s->fault[0] && !strstr(s->label, s->fault)) snprintf(fault, sizeof fault, ", fault %s", s->fault);
    fd_line(to, role, "%s%s%s%s%s", s->label, what, s->device[0] ? ", " : "", s->device, fault);
}

static void put_misrecorded(FILE *to, const fd_misrecorded_kind *kind) {
    char layers[80] = "", holds[224] = "";
    if (kind->n_node > 1) snprintf(layers, sizeof layers, ", and so in layers %s", kind->layers);
    if (kind->holds[0])
        snprintf(holds, sizeof holds, "; it has the values of %s", kind->holds);
    else if (kind->summary[0])
        snprintf(holds, sizeof holds, "; what it holds looks like: %s", kind->summary);
    fd_line(to, "recorded", "%s is not what its op gives, but %s follows from what it should be%s%s", kind->node,
            kind->reader, holds, layers);
}

void fd_report_text(FILE *to, const fd_verdict *v, fd_report_colour colour) {
    char text[1024];
    static const char *const colours[] = {"\033[1;32m", "\033[1;31m", "\033[1;33m", "\033[1;32m", "\033[1;33m"};
    fd_report_headline(v, text, sizeof text);
    if (colour) colour(to, colours[v->status]);
    fd_put_clean(to, text);
    if (colour) colour(to, "\033[0m");
    fputc('\n', to);
    if (v->status == FD_DIVERGED && v->saved_as[0]) fd_line(to, "saved as", "%s", v->saved_as);
    fd_baseline_text(v, text, sizeof text);
    if (text[0]) fd_line(to, "since then", "%s", text);
    if (v->weights.n_differ) fd_report_weights(to, v);
    if (v->status == FD_DIVERGED) put_divergence(to, v);
    for (int32_t i = 0; i < v->dump.n; i++) put_misrecorded(to, &v->dump.kinds[i]);
    if (v->dump.n)
        fd_line(to, "", "recorded late (its buffer was used again), at another stage of its op, or under another name");
    if (v->replay.done) fd_report_replayed(to, v);
    if (v->diagnosis.done) fd_report_explanation(to, &v->diagnosis.explanation);
    if (v->diagnosis.done) fd_report_causes(to, &v->diagnosis.causes);
    if (v->replay.done && v->replay.finding[0]) fd_report_extent(to, &v->replay);
    if (v->next[0]) fd_line(to, "next", "%s", v->next);
    if (v->status == FD_DIVERGED) put_counts(to, v);
    if (v->replay.done) fd_report_replay(to, v);
    if (v->diagnosis.done) fd_report_tells_apart(to, &v->diagnosis.explanation);
    if (!v->weights.n_differ) fd_report_equal_weights(to, v);
    fd_report_flip(to, v);
    fd_report_numbers(to, v);
    fd_report_layer_bars(to, v);
    put_side(to, "ref", &v->ref);
    put_side(to, "cand", &v->cand);
    put_missing(to, v);
    for (int32_t i = v->status == FD_INCOMPLETE ? 1 : 0; i < v->reasons.n && i < FD_MAX_REMARKS; i++)
        fd_line(to, "incomplete", "%s", fd_reason_text(v, i, text));
    if (v->status != FD_DIVERGED && v->counts.n_compared && v->counts.n_by_fingerprint)
        fd_line(to, "compared", "%lld tensor%s, %lld by fingerprint", (long long)v->counts.n_compared,
                fd_plural(v->counts.n_compared), (long long)v->counts.n_by_fingerprint);
    if (v->counts.n_compared > v->counts.n_by_fingerprint && (v->counts.grid == FD_F16 || v->counts.grid == FD_BF16))
        fd_line(to, "note", "rounded to %s where a side is", fd_dtype_get(v->counts.grid)->name);
    for (int32_t i = 0; i < v->notes.n && i < FD_MAX_REMARKS; i++) fd_line(to, "note", "%s", fd_note_text(v, i, text));
}

#include "compare/judge_side.h"

#include <stdio.h>
#include <stdlib.h>

#include "compare/attribute/draws.h"
#include "compare/attribute/typical.h"
#include "compare/attribute/unrounded.h"
#include "compare/attribute/z_map.h"
#include "compare/class/by_bug.h"
#include "compare/class/by_repetition.h"
#include "compare/class/fused_class.h"
#include "compare/class/later_cache.h"
#include "compare/diagnose/along_nearest.h"
#include "compare/diagnose/suspects.h"
#include "compare/dump/misrecorded.h"
#include "compare/find_rival.h"
#include "compare/measure/measure.h"

/* Results of 16 bits. */
#define COARSE_RESULTS 0x1p-20

static void add_row(void *user, const fd_attribution_row *row) {
    fd_comparison *c = user;
    fd_z_map_add(&c->map[c->flips.side], row);
    fd_measures_add(&c->measures[c->flips.side], row, c->flips.side == FD_REFERENCE);
    fd_flips_add(&c->flips, row);
}

static void class_progress(void *user, int64_t done, int64_t total) {
    const fd_comparison *c = user;
    if (c->o->progress) c->o->progress(c->o->progress_user, "try classes", done, total);
}

/* The candidate's half, then the reference's. */
static void pass_progress(void *user, int64_t done, int64_t total) {
    const fd_comparison *c = user;
    if (c->o->progress)
        c->o->progress(c->o->progress_user, "replay tensors", done + (c->flips.side == FD_REFERENCE ? total : 0),
                       2 * total);
}

/* Stated, else inferred. */
static fd_code choose_class(fd_attribution_options *how, const fd_numerics_class *given, fd_judged_class *class_,
                            fd_error *err) {
    *class_ = (fd_judged_class){FD_CLASS_GIVEN};
    how->numerics = given;
    if (how->numerics) return FD_OK;
    class_->source = FD_CLASS_RECORDED;
    how->numerics = fd_class_of_trace(how->cand);
    if (how->numerics) return FD_OK;
    class_->source = FD_CLASS_INFERRED;
    return fd_infer_class(how, &how->numerics, &class_->evidence, err);
}

static fd_code attribute_in_class(fd_comparison *c, int which, const fd_attribution_options *options,
                                  fd_attribution *out, fd_error *err) {
    fd_attribution_options how = *options;
    how.on_row = add_row;
    how.progress = pass_progress;
    FD_TRY(fd_z_map_open(how.graph, how.n_pos, &c->map[which], err));
    FD_TRY(fd_measures_open(how.graph, fd_trace_tokens(how.cand), how.n_pos, &c->measures[which], err));
    FD_TRY(fd_attribute_errors(&how, out, err));
    fd_z_map_finish(&c->map[which], out);
    return FD_OK;
}

static void forget_attribution(fd_comparison *c, int which, fd_attribution *of) {
    fd_attribution_free(of);
    fd_z_map_free(&c->map[which]);
    fd_measures_free(&c->measures[which]);
}

/* The values were widened where they were saved, so the trace does not say that they were rounded after their readers had them. */
static fd_code look_before_rounding(fd_comparison *c, int which, fd_attribution_options *how, fd_attribution *out,
                                    fd_error *err) {
    const double u = out->numerics->u_out;
    if (!out->found || which != FD_CANDIDATE || c->records_rounded || !(u > COARSE_RESULTS)) return FD_OK;
    fd_attribution_options look = *how;
    look.progress = NULL;
    FD_TRY(fd_reads_unrounded(&look, out->first.node, &c->records_rounded, err));
    if (!c->records_rounded) return FD_OK;
    how->records_rounded = true;
    forget_attribution(c, which, out);
    return attribute_in_class(c, which, how, out, err);
}

/* Nothing was found with the room that any steps may need: again with what other engines of the class leave, where that is less than what is
 * left of the candidate's. */
static fd_code set_against_draws(fd_comparison *c, int which, bool known, const fd_attribution_options *options,
                                 fd_attribution *out, fd_error *err) {
    fd_attribution_options how = *options;
    fd_draws draws;
    if (which != FD_CANDIDATE || out->found) return FD_OK;
    how.numerics = out->numerics;
    fd_code code = fd_draws_measure(&how, out, known, &draws, err);
    if (code == FD_OK && fd_draws_say_more(&draws, how.graph)) {
        how.draws = &draws;
        forget_attribution(c, which, out);
        code = attribute_in_class(c, which, &how, out, err);
    }
    fd_draws_free(&draws);
    return code;
}

/* Again where a bug refutes the inferred class. */
static fd_code attribute_side(fd_comparison *c, int which, const fd_numerics_class *given, fd_judged_class *class_,
                              fd_attribution *out, fd_error *err) {
    fd_attribution_options how = fd_comparison_options(c, which);
    how.user = c;
    how.progress = class_progress;
    c->flips.side = which;
    FD_TRY(choose_class(&how, given, class_, err));
    FD_TRY(attribute_in_class(c, which, &how, out, err));
    FD_TRY(look_before_rounding(c, which, &how, out, err));
    if (class_->source == FD_CLASS_INFERRED) FD_TRY(fd_refute_class_by_bug(&how, out, &class_->evidence, err));
    if (class_->source == FD_CLASS_INFERRED) FD_TRY(fd_unfuse_class(&how, out, err));
    if (class_->source == FD_CLASS_INFERRED && how.numerics == out->numerics)
        FD_TRY(fd_refute_unfused_class(&how, out, &class_->evidence, err));
    if (how.numerics != out->numerics) {
        forget_attribution(c, which, out);
        FD_TRY(attribute_in_class(c, which, &how, out, err));
    }
    return set_against_draws(c, which, class_->source != FD_CLASS_INFERRED, &how, out, err);
}

/* A class was given that keeps binary32 tensors, and the trace has none. */
static fd_code note_16_bit_tensors(fd_comparison *c, const fd_attribution *of, fd_error *err) {
    fd_attribution_options how = fd_comparison_options(c, FD_CANDIDATE);
    const fd_numerics_class *given = c->o->numerics, *shown;
    if (!given || !of->found) return FD_OK;
    FD_TRY(fd_class_of_16_bit_values(&how, given, &shown, err));
    fd_remark r = {FD_NOTE_TENSORS_OF_16_BITS};
    snprintf(r.node, sizeof r.node, "%s", given->name);
    snprintf(r.other, sizeof r.other, "%s", shown->name);
    if (shown != given) fd_verdict_note(c->verdict, r);
    return FD_OK;
}

/* Tensors that a sound engine recorded wrongly, or a cache that the first call does not read, are left out, and the rest is judged again. */
static fd_code leave_misrecorded_out(fd_comparison *c, fd_judged_class *class_, fd_attribution *out, fd_error *err) {
    if (!out->found) return FD_OK;
    fd_attribution_options how = fd_comparison_options(c, FD_CANDIDATE);
    how.numerics = out->numerics;
    bool *ignored = calloc((size_t)how.graph->n_node, sizeof *ignored);
    if (!ignored) return fd_fail(err, FD_ERR_MEMORY, "verdict: out of memory");
    bool later_cache = false;
    fd_code code = fd_find_misrecorded(&how, out, ignored, &c->verdict->dump, err);
    if (code == FD_OK && c->verdict->dump.n == 0 && class_->source == FD_CLASS_INFERRED)
        code = fd_leave_later_cache_out(&how, out, ignored, &later_cache, err);
    if (code != FD_OK || (c->verdict->dump.n == 0 && !later_cache)) {
        free(ignored);
        return code;
    }
    c->ignored = ignored;
    forget_attribution(c, FD_CANDIDATE, out);
    fd_judged_class same;
    return later_cache ? attribute_side(c, FD_CANDIDATE, how.numerics, &same, out, err)
                       : attribute_side(c, FD_CANDIDATE, c->o->numerics, class_, out, err);
}

/* What departs from the class that was inferred is what another class does, which nothing refutes: a bug only where it has
 * a name that is more than rounding. Else nobody can tell, and the verdict is that class's. */
static fd_code yield_to_rival(fd_comparison *c, fd_judged_class *class_, fd_attribution *out, fd_error *err) {
    fd_class_evidence *evidence = &class_->evidence;
    fd_explanation e = {0};
    const fd_numerics_class *rival;
    if (class_->source != FD_CLASS_INFERRED || !out->found || c->verdict->weights.n_differ > 0) return FD_OK;
    FD_TRY(fd_find_rival(c, evidence, out, &rival, err));
    if (!rival) return FD_OK;
    fd_diagnose_options ask = fd_comparison_question(c, &out->first, out, FD_CANDIDATE);
    FD_TRY(fd_comparison_explain(c, &ask, &e, err));
    const bool fitted = fd_explains_by_fit(c->o->graph, &e); /* a class that gives all of it is simpler */
    if (e.named && !fitted && !fd_explains_by_rounding(&e) && !fd_explains_by_one_rounding(&e)) return FD_OK;
    c->explained = false;
    snprintf(evidence->other, sizeof evidence->other, "%s", out->numerics->name);
    snprintf(evidence->node, sizeof evidence->node, "%s", c->o->graph->nodes[out->first.node].name);
    evidence->kind = FD_EVIDENCE_STRICTER;
    evidence->n = (int32_t)(out->n_by_finding[FD_FOUND_INTRODUCED] + out->n_by_finding[FD_FOUND_BOTH]);
    evidence->n_of = (int32_t)out->n_tensor;
    evidence->undecided = evidence->yielded = true;
    forget_attribution(c, FD_CANDIDATE, out);
    fd_judged_class unused;
    return attribute_side(c, FD_CANDIDATE, rival, &unused, out, err);
}

/* The first tensor that was reached through unrecorded ones, where a class that nothing shows has room for what is left. */
static fd_node_finding first_with_room(const fd_comparison *c) {
    const fd_node *nodes = c->o->graph->nodes;
    fd_node_finding at = {FD_FOUND_NOTHING};
    int32_t first = 0; /* since the last that was recorded */
    for (int32_t i = 0; i < c->o->graph->n_node && at.finding == FD_FOUND_NOTHING; i++) {
        const int32_t in = nodes[i].input[0];
        if (!fd_trace_has_data(c->o->cand, nodes[i].name)) continue;
        if (in >= first) at = (fd_node_finding){.finding = FD_FOUND_INTRODUCED, .node = i, .span_first = first};
        first = i + 1;
    }
    return at;
}

/* A class has room for what is left, which goes along a bug. */
static fd_code find_along(fd_comparison *c, const fd_diagnose_options *ask, fd_explanation *e, fd_attribution *out,
                          fd_error *err) {
    fd_node_finding where;
    bool shown;
    FD_TRY(fd_explain_along_nearest(ask, e, &where, &shown, err));
    if (!shown) return FD_OK;
    if (e->named) c->below = *e;
    fd_comparison_keep(c, &where, e);
    c->verdict->diagnosis.causes.first.n_node = 1;
    out->suspect[where.node] = where;
    fd_attribution_promote(c->o->graph, out, NULL);
    return FD_OK;
}

/* Where a bug moves all rows, none of them shows the class. Then the class and the bug are found together, or neither is. */
static fd_code judge_by_repetition(fd_comparison *c, fd_judged_class *class_, fd_attribution *out, fd_error *err) {
    fd_explanation e = {0};
    const fd_numerics_class *shown;
    if (class_->source != FD_CLASS_INFERRED || c->verdict->weights.n_differ > 0) return FD_OK;
    const fd_node_finding at = out->found ? out->first : first_with_room(c);
    fd_diagnose_options ask = fd_comparison_question(c, &at, out, FD_CANDIDATE);
    if (at.finding == FD_FOUND_NOTHING || !(out->found || class_->evidence.undecided)) return FD_OK;
    if (!out->found) ask.numerics = fd_numerics_class_find("f32"); /* where there is room everything fits */
    FD_TRY(out->found ? fd_comparison_explain(c, &ask, &e, err) : fd_diagnose(&ask, &e, err));
    if (e.named && out->found) return FD_OK;
    if (!out->found) fd_leave_roundings_out(&e);
    FD_TRY(fd_find_class_by_repetition(&ask, &e, &shown, &c->likely, err));
    if (!shown) return out->found ? FD_OK : find_along(c, &ask, &e, out, err);
    c->likely_at = at.node + 1;
    const fd_numerics_class *was = out->numerics;
    fd_judged_class unused;
    forget_attribution(c, FD_CANDIDATE, out);
    FD_TRY(attribute_side(c, FD_CANDIDATE, shown, &unused, out, err));
    const bool nothing = !out->found && out->suspect[at.node].finding == FD_FOUND_NOTHING;
    if (nothing || (out->found && out->first.node < at.node)) { /* no engine's that was right until there */
        c->likely_at = 0;
        forget_attribution(c, FD_CANDIDATE, out);
        FD_TRY(attribute_side(c, FD_CANDIDATE, was, &unused, out, err));
        return out->found ? FD_OK : find_along(c, &ask, &e, out, err);
    }
    c->explained = false;
    fd_class_refuted_by_bug(was, c->o->graph->nodes[at.node].name, &class_->evidence);
    return FD_OK;
}

/* An inferred class was chosen by what it leaves of a sample. */
static fd_code suspect_large_errors(const fd_comparison *c, const fd_judged_class *class_, fd_attribution *out,
                                    fd_error *err) {
    const fd_attribution_options how = fd_comparison_options(c, FD_CANDIDATE);
    bool known = class_->source == FD_CLASS_INFERRED && !class_->evidence.outside && !out->found;
    return known ? FD_OK : fd_suspect_large_errors(&how, out, err);
}

fd_code fd_judge_candidate(fd_comparison *c, fd_judged_class *class_, fd_attribution *out, fd_error *err) {
    FD_TRY(attribute_side(c, FD_CANDIDATE, c->o->numerics, class_, out, err));
    FD_TRY(note_16_bit_tensors(c, out, err));
    FD_TRY(leave_misrecorded_out(c, class_, out, err));
    FD_TRY(yield_to_rival(c, class_, out, err));
    FD_TRY(judge_by_repetition(c, class_, out, err));
    return suspect_large_errors(c, class_, out, err);
}

fd_code fd_judge_reference(fd_comparison *c, fd_judged_class *class_, fd_attribution *out, fd_error *err) {
    return attribute_side(c, FD_REFERENCE, NULL, class_, out, err);
}

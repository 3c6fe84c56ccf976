#include "compare/compare_model.h"

#include <stdio.h>
#include <stdlib.h>

#include "compare/diagnose/below_bounds.h"
#include "compare/diagnose/class_by_bug.h"
#include "compare/diagnose/group_findings.h"
#include "compare/diagnose/later_steps.h"
#include "compare/diagnose/misrecorded.h"
#include "compare/diagnose/mixed.h"
#include "compare/diagnose/suspects.h"
#include "compare/diagnose/weights.h"
#include "compare/diff/token_split.h"
#include "compare/measure/measure.h"
#include "compare/measure/step_health.h"
#include "compare/measure/token_texts.h"
#include "compare/replay/argmax_flip.h"
#include "compare/replay/extent.h"
#include "compare/replay/findings.h"
#include "compare/replay/z_map.h"
#include "compare/report/next.h"

typedef struct comparison {
    const fd_compare_model_options *o;
    fd_verdict *verdict;
    fd_trace_pair pair;
    fd_loaded_weights loaded[2]; /* reference's, candidate's */
    fd_flips flips;
    fd_verdict_map map[2]; /* of the reference's trace, of the candidate's */
    fd_measures measures[2];
    int32_t n_pos;        /* positions whose tokens agree */
    bool *ignored;        /* [n_node] of the candidate: recorded wrongly; owned */
    fd_explanation below; /* named: a bug below the bounds */
    fd_explanation first; /* of the candidate's first finding, `explained` when it was asked for */
    int32_t explained_node, explained_pos;
    bool explained;
    bool own_ways; /* from n_pos on, each side follows its own choices, and is judged on its own tokens */
} comparison;

enum { REF, CAND };

/* Bounds. */
#define MUCH_BEYOND 2.0
/* A share of the difference from the reference: a few values that a class rounds to steps of nearly their own size, and another
 * does not. */
#define LITTLE_INTRODUCED 1e-4

/* The model as one side ran it. */
static const fd_graph *graph_of(const comparison *c, int side) {
    return c->loaded[side].graph ? c->loaded[side].graph : c->o->graph;
}

static void add_row(void *user, const fd_attribution_row *row) {
    comparison *c = user;
    fd_z_map_add(&c->map[c->flips.side], row);
    fd_measures_add(&c->measures[c->flips.side], row, c->flips.side == REF);
    fd_flips_add(&c->flips, row);
}

static void class_progress(void *user, int64_t done, int64_t total) {
    const comparison *c = user;
    if (c->o->progress) c->o->progress(c->o->progress_user, "try classes", done, total);
}

/* The candidate's half, then the reference's. */
static void pass_progress(void *user, int64_t done, int64_t total) {
    const comparison *c = user;
    if (c->o->progress)
        c->o->progress(c->o->progress_user, "replay tensors", done + (c->flips.side == REF ? total : 0), 2 * total);
}

static fd_attribution_options options_of(const comparison *c, int which) {
    const fd_trace *side = which == CAND ? c->o->cand : c->o->ref, *other = which == CAND ? c->o->ref : c->o->cand;
    return (fd_attribution_options){.graph = graph_of(c, which),
                                    .unjudged = c->loaded[which].unknown,
                                    .ignored = which == CAND ? c->ignored : NULL,
                                    .ref = other,
                                    .cand = side,
                                    .n_pos = c->own_ways ? fd_trace_n_pos(side) : c->n_pos,
                                    .n_ref_pos = c->n_pos,
                                    .op = c->o->op,
                                    .device = c->o->device};
}

/* The class, and how it is known. */
static fd_code choose_class(fd_attribution_options *how, const fd_numerics_class *given, fd_class_source *source,
                            fd_class_evidence *evidence, fd_error *err) {
    *evidence = (fd_class_evidence){0};
    *source = FD_CLASS_GIVEN;
    how->numerics = given;
    if (how->numerics) return FD_OK;
    *source = FD_CLASS_RECORDED;
    how->numerics = fd_class_of_trace(how->cand);
    if (how->numerics) return FD_OK;
    *source = FD_CLASS_INFERRED;
    return fd_infer_class(how, &how->numerics, evidence, err);
}

static fd_code attribute_in_class(comparison *c, int which, const fd_attribution_options *options, fd_attribution *out,
                                  fd_error *err) {
    fd_attribution_options how = *options;
    how.on_row = add_row;
    how.progress = pass_progress;
    FD_TRY(fd_z_map_open(how.graph, how.n_pos, &c->map[which], err));
    FD_TRY(fd_measures_open(how.graph, fd_trace_tokens(how.cand), how.n_pos, &c->measures[which], err));
    FD_TRY(fd_attribute_errors(&how, out, err));
    fd_z_map_finish(&c->map[which], out);
    return FD_OK;
}

static void forget_attribution(comparison *c, int which, fd_attribution *of) {
    fd_attribution_free(of);
    fd_z_map_free(&c->map[which]);
    fd_measures_free(&c->measures[which]);
}

/* Judges one trace, the other giving what its inputs had brought along; again where a bug refutes the inferred class. */
static fd_code attribute_side(comparison *c, int which, const fd_numerics_class *given, fd_class_source *source,
                              fd_class_evidence *evidence, fd_attribution *out, fd_error *err) {
    fd_attribution_options how = options_of(c, which);
    how.user = c;
    how.progress = class_progress;
    c->flips.side = which;
    FD_TRY(choose_class(&how, given, source, evidence, err));
    FD_TRY(attribute_in_class(c, which, &how, out, err));
    if (*source == FD_CLASS_INFERRED) FD_TRY(fd_refute_class_by_bug(&how, out, evidence, err));
    if (how.numerics == out->numerics) return FD_OK;
    forget_attribution(c, which, out);
    return attribute_in_class(c, which, &how, out, err);
}

/* A class was given that keeps binary32 tensors, and the trace has none. */
static fd_code note_16_bit_tensors(comparison *c, const fd_attribution *of, fd_error *err) {
    fd_attribution_options how = options_of(c, CAND);
    const fd_numerics_class *given = c->o->numerics, *shown;
    if (!given || !of->found) return FD_OK;
    FD_TRY(fd_class_of_16_bit_values(&how, given, &shown, err));
    fd_remark r = {FD_NOTE_TENSORS_OF_16_BITS};
    snprintf(r.node, sizeof r.node, "%s", given->name);
    snprintf(r.other, sizeof r.other, "%s", shown->name);
    if (shown != given) fd_verdict_note(c->verdict, r);
    return FD_OK;
}

/* Tensors that a sound engine recorded wrongly are left out, and the rest is judged again. */
static fd_code judge_candidate(comparison *c, fd_class_source *source, fd_class_evidence *evidence, fd_attribution *out,
                               fd_error *err) {
    FD_TRY(attribute_side(c, CAND, c->o->numerics, source, evidence, out, err));
    FD_TRY(note_16_bit_tensors(c, out, err));
    if (!out->found) return FD_OK;
    fd_attribution_options how = options_of(c, CAND);
    how.numerics = out->numerics;
    bool *ignored = calloc((size_t)how.graph->n_node, sizeof *ignored);
    if (!ignored) return fd_fail(err, FD_ERR_MEMORY, "verdict: out of memory");
    fd_code code = fd_find_misrecorded(&how, out, ignored, &c->verdict->dump, err);
    if (code != FD_OK || c->verdict->dump.n == 0) {
        free(ignored);
        return code;
    }
    c->ignored = ignored;
    forget_attribution(c, CAND, out);
    return attribute_side(c, CAND, c->o->numerics, source, evidence, out, err);
}

static fd_diagnose_options question(const comparison *c, const fd_attribution *of, bool of_reference) {
    fd_attribution_options how = options_of(c, of_reference ? REF : CAND);
    return fd_diagnose_question(&how, of);
}

/* The candidate's first finding, asked about once. */
static fd_code explain_first(comparison *c, const fd_diagnose_options *ask, fd_explanation *out, fd_error *err) {
    const fd_node_finding *f = ask->finding;
    if (!c->explained || f->node != c->explained_node || f->pos != c->explained_pos)
        FD_TRY(fd_diagnose(ask, &c->first, err));
    c->explained = true;
    c->explained_node = f->node;
    c->explained_pos = f->pos;
    *out = c->first;
    return FD_OK;
}

/* Nothing of the candidate departs from this class. */
static fd_code explains_everything(const comparison *c, const fd_numerics_class *class_, bool *yes, fd_error *err) {
    fd_attribution_options how = options_of(c, CAND);
    fd_attribution of;
    how.numerics = class_;
    how.ref = NULL;
    fd_code code = fd_attribute_errors(&how, &of, err);
    *yes = code == FD_OK && !of.found;
    fd_attribution_free(&of);
    return code;
}

/* What departs from the class that was inferred is what another class does, which nothing refutes: a bug only where it has
 * a name that is more than rounding. Else nobody can tell, and the verdict is that class's. */
static fd_code yield_to_rival(comparison *c, fd_class_source source, fd_class_evidence *evidence, fd_attribution *out,
                              fd_error *err) {
    fd_explanation e = {0};
    const fd_numerics_class *rival = NULL;
    const bool little = out->first.has_reference && out->first.introduced < LITTLE_INTRODUCED;
    bool near = !(out->first.z > MUCH_BEYOND) || little; /* by so little the class may be a bit too strict */
    if (source != FD_CLASS_INFERRED || !out->found || c->verdict->weights.n_differ > 0) return FD_OK;
    if (!evidence->outside && !near) return FD_OK;
    for (int32_t i = 0; i < evidence->n_rival && !rival; i++) {
        bool yes;
        FD_TRY(explains_everything(c, evidence->rivals[i], &yes, err));
        if (yes) rival = evidence->rivals[i];
    }
    if (!rival && ((near && evidence->one_tensor) || little)) { /* nothing refutes a coarser one then */
        bool yes;
        const fd_numerics_class *coarser = fd_numerics_class_find("f16");
        FD_TRY(explains_everything(c, coarser, &yes, err));
        if (yes) rival = coarser;
    }
    if (!rival) return FD_OK;
    fd_diagnose_options ask = question(c, out, false);
    FD_TRY(explain_first(c, &ask, &e, err));
    if (e.named && !fd_explains_by_rounding(&e) && !fd_explains_by_one_rounding(&e)) return FD_OK;
    c->explained = false;
    snprintf(evidence->other, sizeof evidence->other, "%s", out->numerics->name);
    snprintf(evidence->node, sizeof evidence->node, "%s", c->o->graph->nodes[out->first.node].name);
    evidence->kind = FD_EVIDENCE_STRICTER;
    evidence->n = (int32_t)(out->n_by_finding[FD_FOUND_INTRODUCED] + out->n_by_finding[FD_FOUND_BOTH]);
    evidence->n_of = (int32_t)out->n_tensor;
    evidence->undecided = evidence->yielded = true;
    forget_attribution(c, CAND, out);
    fd_class_evidence unused;
    return attribute_side(c, CAND, rival, &source, &unused, out, err);
}

static fd_code diagnose_finding(comparison *c, const fd_attribution *of, bool of_reference, fd_error *err) {
    fd_verdict_diagnosis *out = &c->verdict->diagnosis;
    fd_diagnose_options how = question(c, of, of_reference);
    out->done = true;
    if (c->below.named) {
        out->explanation = c->below;
        return FD_OK;
    }
    if (of_reference)
        FD_TRY(fd_diagnose(&how, &out->explanation, err));
    else
        FD_TRY(explain_first(c, &how, &out->explanation, err));
    if (!out->explanation.named) FD_TRY(fd_explain_by_slope(&how, &out->explanation, err));
    const fd_verdict_map *map = &c->map[of_reference ? REF : CAND];
    const float *z = map->by_pos + (size_t)of->first.node * (size_t)map->n_pos;
    FD_TRY(fd_refute_by_later_steps(&how, z, map->n_pos, &out->explanation, err));
    FD_TRY(fd_doubt_few_rows(&how, z, map->n_pos, &out->explanation, err));
    return fd_group_findings(&how, of, &out->explanation, &out->causes, err);
}

/* A reason at a finding, with what to record. */
static fd_remark reason_at(const comparison *c, fd_remark_kind kind, const fd_node_finding *f) {
    const fd_graph *graph = c->o->graph;
    fd_remark r = {kind};
    snprintf(r.node, sizeof r.node, "%s", graph->nodes[f->node].name);
    fd_finding_globs(graph, f->span_first, f->node, r.text, sizeof r.text);
    return r;
}

static void add_inconclusive(comparison *c, const fd_node_finding *f) {
    fd_remark r = reason_at(c, FD_REASON_SPAN_INCONCLUSIVE, f);
    snprintf(r.other, sizeof r.other, "%s", c->o->graph->nodes[f->span_first].name);
    fd_verdict_reason(c->verdict, r);
}

/* What the bounds have room for: what replay leaves has not, or what has the direction of a bug. */
static fd_code find_below_bounds(comparison *c, fd_attribution *of, fd_error *err) {
    fd_diagnose_options ask = question(c, of, false);
    fd_node_finding left;
    FD_TRY(fd_resolve_suspects(&ask, of, &left, err));
    FD_TRY(fd_find_below_bounds(&ask, of, &c->below, &c->verdict->diagnosis.causes, err));
    if (left.finding == FD_FOUND_NOTHING || c->below.named) return FD_OK;
    fd_remark r = reason_at(c, FD_REASON_RESIDUAL, &left);
    r.n[0] = left.n_odd;
    snprintf(r.other, sizeof r.other, "%.1e", left.left);
    fd_verdict_reason(c->verdict, r);
    return FD_OK;
}

/* Nothing was introduced on either side: bits that differ are no divergence, unless the tokens say so. */
static void report_noise(comparison *c, const fd_attribution *cand) {
    fd_verdict *v = c->verdict;
    const fd_divergence *was = &v->divergence;
    if (was->kind == FD_DIVERGED_VALUES) {
        fd_remark r = {FD_NOTE_FIRST_BITS, .n = {was->step, was->pos}};
        snprintf(r.node, sizeof r.node, "%s", was->node);
        fd_verdict_note(v, r);
        v->next[0] = '\0';
    }
    v->divergence = (fd_divergence){0};
    if (cand->n_inconclusive) add_inconclusive(c, &cand->inconclusive);
    if (v->replay.evidence.undecided) fd_verdict_reason(v, (fd_remark){FD_REASON_CLASS_UNDECIDED});
    if (c->own_ways && !v->flip.choice_known)
        fd_verdict_reason(v, (fd_remark){FD_REASON_CHOICE_UNRECORDED, .n = {v->flip.fed_pos}});
    if (c->n_pos < 2) fd_verdict_reason(v, (fd_remark){FD_REASON_ONE_POSITION});
    /* every op of both sides is right by its own inputs: a side that was fed its own best token followed its roundings;
     * prompts of different texts are among the reasons */
    if (fd_tokens_of_one_text(c->o->ref, c->o->cand) || (c->own_ways && v->flip.choice_known && !v->flip.chosen))
        fd_tokens_diverge(c->o->ref, c->o->cand, v);
}

/* Then nothing was introduced, as far as anybody can tell. */
static fd_code look_for_mixed_class(comparison *c, fd_class_source source, fd_attribution *of, fd_error *err) {
    fd_diagnose_options ask = question(c, of, false);
    fd_explanation e;
    bool mixed;
    if (source != FD_CLASS_INFERRED || c->verdict->weights.n_differ > 0 || !fd_may_be_mixed_class(c->o->graph, of))
        return FD_OK;
    FD_TRY(explain_first(c, &ask, &e, err));
    fd_remark r = {FD_REASON_MIXED_CLASS};
    FD_TRY(fd_is_mixed_class(&ask, of, &e, &mixed, err));
    if (mixed) {
        snprintf(r.text, sizeof r.text, "%.150s", e.remaining[0].summary);
    } else if (!e.named) {
        double error;
        FD_TRY(fd_is_own_way(&ask, of, &error, &mixed, err));
        snprintf(r.text, sizeof r.text,
                 "off by %.1g of it in no direction, as sums of rounded parts or int8 inputs are", error);
    }
    if (!mixed) return FD_OK;
    const char *at = e.named ? e.remaining[0].at : "";
    snprintf(r.node, sizeof r.node, "%s", at[0] ? at : c->o->graph->nodes[of->first.node].name);
    fd_verdict_reason(c->verdict, r);
    of->found = false;
    return FD_OK;
}

static fd_code note_where_name_ends(comparison *c, const fd_attribution *of, bool of_reference, fd_error *err) {
    const fd_verdict_map *map = &c->map[of_reference ? REF : CAND];
    fd_diagnose_options ask = question(c, of, of_reference);
    fd_node_finding there;
    const float *z = map->by_pos + (size_t)of->first.node * (size_t)map->n_pos;
    if (c->below.named) return FD_OK;
    FD_TRY(fd_where_name_ends(&ask, &c->verdict->diagnosis.explanation, z, map->n_pos, &there, err));
    if (there.finding == FD_FOUND_NOTHING) return FD_OK;
    fd_remark r = {FD_NOTE_NAME_ENDS, .n = {there.step, there.pos}};
    snprintf(r.node, sizeof r.node, "%s", c->o->graph->nodes[there.node].name);
    fd_verdict_note(c->verdict, r);
    return FD_OK;
}

/* That side introduced an error. */
static fd_code report_divergence(comparison *c, const fd_attribution *of, bool of_reference, fd_error *err) {
    fd_verdict *v = c->verdict;
    fd_finding_context where = {c->o->graph, c->o->ref, &c->pair, c->n_pos};
    const fd_verdict_map *map = &c->map[of_reference ? REF : CAND];
    fd_finding_replay(c->o->graph, of, of_reference, &v->replay);
    const fd_trace *side = of_reference ? c->o->ref : c->o->cand;
    v->replay.extent = fd_extent_of(map->by_pos + (size_t)of->first.node * (size_t)map->n_pos, map->n_pos,
                                    fd_trace_steps(side), fd_trace_n_step(side));
    FD_TRY(fd_finding_divergence(&where, &of->first, of_reference, &v->divergence, err));
    FD_TRY(diagnose_finding(c, of, of_reference, err));
    FD_TRY(note_where_name_ends(c, of, of_reference, err));
    fd_diagnose_options how = question(c, of, of_reference);
    how.finding = &of->not_finite;
    FD_TRY(fd_find_overflow(&how, &v->replay.overflow, err));
    fd_next_of_replay(v, of_reference ? c->o->ref : c->o->cand);
    return FD_OK;
}

/* The map and the measures of the side that the verdict is about. */
static void take_map(comparison *c, int side) {
    if (c->verdict->replay.done) {
        c->verdict->map = c->map[side];
        c->map[side] = (fd_verdict_map){0};
        c->verdict->measures = c->measures[side];
        c->measures[side] = (fd_measures){0};
    }
    for (int i = 0; i < 2; i++) {
        fd_z_map_free(&c->map[i]);
        fd_measures_free(&c->measures[i]);
    }
}

/* The candidate first; where it is right everywhere, the reference. */
static fd_code attribute_both(comparison *c, fd_attribution of[2], int *side, fd_error *err) {
    fd_verdict *v = c->verdict;
    fd_class_source source;
    fd_class_evidence evidence = {0}, of_reference = {0};
    *side = CAND;
    FD_TRY(judge_candidate(c, &source, &evidence, &of[CAND], err));
    FD_TRY(yield_to_rival(c, source, &evidence, &of[CAND], err));
    FD_TRY(look_for_mixed_class(c, source, &of[CAND], err));
    if (of[CAND].n_tensor == 0 && of[CAND].n_inconclusive == 0) {
        fd_remark r = {FD_NOTE_NO_ELEMENTS};
        snprintf(r.text, sizeof r.text, "%s", fd_trace_path(c->o->cand));
        fd_verdict_note(v, r);
        return FD_OK;
    }
    FD_TRY(find_below_bounds(c, &of[CAND], err));
    fd_finding_counts(c->o->graph, &of[CAND], source, &v->replay);
    v->replay.evidence = evidence;
    if (!of[CAND].found) FD_TRY(attribute_side(c, REF, NULL, &source, &of_reference, &of[REF], err));
    fd_flips_report(&c->flips, c->o->ref, c->o->cand, v);
    if (!of[CAND].found && of[REF].found) *side = REF;
    if (!of[*side].found) {
        report_noise(c, &of[CAND]);
        return FD_OK;
    }
    FD_TRY(report_divergence(c, &of[*side], *side == REF, err));
    if (*side == REF) fd_verdict_note(v, (fd_remark){FD_NOTE_REFERENCE_DEPARTS});
    return FD_OK;
}

static fd_code replay_both(comparison *c, fd_error *err) {
    fd_attribution of[2] = {{0}, {0}};
    int side;
    fd_code code = attribute_both(c, of, &side, err);
    take_map(c, side);
    if (code == FD_OK && c->verdict->measures.n_pos)
        code = fd_measures_take_health(c->o->ref, c->o->cand, &c->verdict->measures, err);
    if (code == FD_OK && c->o->tokenizer && c->verdict->measures.n_pos)
        code = fd_measures_name_tokens(c->o->tokenizer, &c->verdict->measures, err);
    for (int i = 0; i < 2; i++) fd_attribution_free(&of[i]);
    return code;
}

fd_code fd_compare_with_model(const fd_compare_model_options *options, fd_verdict *verdict, fd_error *err) {
    comparison c = {.o = options, .verdict = verdict};
    if (verdict->counts.n_compared == 0) return FD_OK;
    fd_code code = fd_weights_against_model(options->graph, options->ref, options->cand, verdict, &c.loaded[REF],
                                            &c.loaded[CAND], err);
    bool no_reason_to = verdict->status == FD_IDENTICAL || verdict->divergence.kind == FD_DIVERGED_SHAPE;
    if (code == FD_OK && !no_reason_to) {
        code = fd_trace_pair_open(options->ref, options->cand, &c.pair, err);
        c.n_pos = code == FD_OK ? c.pair.align.first_token_differs : 0;
        c.own_ways =
            fd_tokens_part(options->ref, options->cand) >= 0 && !fd_tokens_part_in_prompt(options->ref, options->cand);
        if (code == FD_OK) code = fd_flips_open(options->graph, c.n_pos, &c.flips, err);
        if (code == FD_OK && c.n_pos > 0) code = replay_both(&c, err);
        fd_flips_close(&c.flips);
        fd_trace_pair_close(&c.pair);
    }
    if (code == FD_OK) fd_verdict_decide(verdict);
    free(c.ignored);
    for (int side = 0; side < 2; side++) fd_loaded_weights_free(&c.loaded[side]);
    return code;
}

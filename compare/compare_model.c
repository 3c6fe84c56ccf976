#include <stdio.h>
#include <stdlib.h>

#include "compare/attribute/extent.h"
#include "compare/attribute/findings.h"
#include "compare/attribute/z_map.h"
#include "compare/class/by_bug.h"
#include "compare/diagnose/asked_rows.h"
#include "compare/diagnose/below_bounds.h"
#include "compare/diagnose/earlier_layers.h"
#include "compare/diagnose/first_layer.h"
#include "compare/diagnose/group_findings.h"
#include "compare/diagnose/later_steps.h"
#include "compare/diagnose/step_before.h"
#include "compare/diagnose/suspects.h"
#include "compare/diagnose/twins.h"
#include "compare/diff/token_split.h"
#include "compare/doubt_class.h"
#include "compare/doubt_values.h"
#include "compare/explain/forms.h"
#include "compare/judge_side.h"
#include "compare/measure/step_health.h"
#include "compare/measure/token_texts.h"
#include "compare/report/next.h"
#include "compare/weights/requantised.h"

/* The model as one side ran it. */
static const fd_graph *graph_of(const fd_comparison *c, int side) {
    return c->loaded[side].graph ? c->loaded[side].graph : c->o->graph;
}

fd_attribution_options fd_comparison_options(const fd_comparison *c, int which) {
    const fd_trace *side = which == FD_CANDIDATE ? c->o->cand : c->o->ref,
                   *other = which == FD_CANDIDATE ? c->o->ref : c->o->cand;
    return (fd_attribution_options){.graph = graph_of(c, which),
                                    .unjudged = c->loaded[which].unknown,
                                    .ignored = which == FD_CANDIDATE ? c->ignored : NULL,
                                    .records_rounded = which == FD_CANDIDATE && c->records_rounded,
                                    .shown_at = which == FD_CANDIDATE ? c->likely_at : 0,
                                    .ref = other,
                                    .cand = side,
                                    .n_pos = c->own_ways ? fd_trace_n_pos(side) : c->n_pos,
                                    .n_ref_pos = c->n_pos,
                                    .op = c->o->op,
                                    .device = c->o->device,
                                    .memo = c->memo};
}

fd_diagnose_options fd_comparison_question(const fd_comparison *c, const fd_node_finding *finding,
                                           const fd_attribution *of, int side) {
    fd_attribution_options how = fd_comparison_options(c, side);
    fd_diagnose_options ask = fd_diagnose_question(&how, of);
    ask.finding = finding;
    ask.shows_at = fd_shows_at(c->map[side].by_pos, c->map[side].n_pos, finding);
    ask.likely = side == FD_CANDIDATE && c->likely_at > 0 ? &c->likely : NULL;
    return ask;
}

fd_code fd_comparison_explain(fd_comparison *c, const fd_diagnose_options *ask, fd_explanation *out, fd_error *err) {
    const fd_node_finding *f = ask->finding;
    if (!c->explained || f->node != c->explained_node || f->pos != c->explained_pos) {
        fd_explanation e;
        FD_TRY(fd_diagnose(ask, &e, err));
        fd_comparison_keep(c, f, &e);
    }
    *out = c->first;
    return FD_OK;
}

void fd_comparison_keep(fd_comparison *c, const fd_node_finding *of, const fd_explanation *e) {
    c->first = *e;
    c->explained = true;
    c->explained_node = of->node;
    c->explained_pos = of->pos;
}

static fd_code diagnose_finding(fd_comparison *c, const fd_attribution *of, bool of_reference, fd_error *err) {
    fd_verdict_diagnosis *out = &c->verdict->diagnosis;
    fd_diagnose_options how = fd_comparison_question(c, &of->first, of, of_reference ? FD_REFERENCE : FD_CANDIDATE);
    out->done = true;
    if (c->below.named) {
        out->explanation = c->below;
        return FD_OK;
    }
    FD_TRY(of_reference ? fd_diagnose(&how, &out->explanation, err)
                        : fd_comparison_explain(c, &how, &out->explanation, err));
    FD_TRY(fd_explain_by_blocks(&how, &out->explanation, err));
    if (!out->explanation.named) FD_TRY(fd_explain_by_slope(&how, &out->explanation, err));
    const fd_verdict_map *map = &c->map[of_reference ? FD_REFERENCE : FD_CANDIDATE];
    const float *z = map->by_pos + (size_t)of->first.node * (size_t)map->n_pos;
    FD_TRY(fd_refute_by_step_before(&how, z, &out->explanation, err));
    FD_TRY(fd_add_twins(&how, &out->explanation, err));
    FD_TRY(fd_refute_by_later_steps(&how, z, map->n_pos, &out->explanation, err));
    FD_TRY(fd_prefer_what_holds_later(&how, z, map->n_pos, &out->explanation, err));
    FD_TRY(fd_doubt_few_rows(&how, z, map->n_pos, &out->explanation, err));
    fd_refute_by_right_rows(z, map->n_pos, &out->explanation);
    return fd_group_findings(&how, of, &out->explanation, &out->causes, err);
}

/* A reason at a finding, with what to record. */
static fd_remark reason_at(const fd_comparison *c, fd_remark_kind kind, const fd_node_finding *f) {
    const fd_graph *graph = c->o->graph;
    fd_remark r = {kind};
    snprintf(r.node, sizeof r.node, "%s", graph->nodes[f->node].name);
    fd_finding_globs(graph, f->span_first, f->node, r.text, sizeof r.text);
    return r;
}

static void add_inconclusive(fd_comparison *c, const fd_node_finding *f) {
    fd_remark r = reason_at(c, FD_REASON_SPAN_INCONCLUSIVE, f);
    snprintf(r.other, sizeof r.other, "%s", c->o->graph->nodes[f->span_first].name);
    fd_verdict_reason(c->verdict, r);
}

static fd_code begin_at_first_layer(fd_comparison *c, fd_attribution *of, fd_error *err) {
    const fd_diagnose_options ask = fd_comparison_question(c, &of->first, of, FD_CANDIDATE);
    fd_explanation e;
    if (!of->found || c->below.named || of->first_stays) return FD_OK;
    const bool is_first = !fd_first_layer(c->o->graph, of);
    if (is_first && !fd_may_begin_earlier(&ask, of)) return FD_OK;
    FD_TRY(fd_comparison_explain(c, &ask, &e, err));
    if (!is_first) FD_TRY(fd_begin_at_first_layer(&ask, of, &e, err));
    FD_TRY(fd_begin_at_earlier_layer(&ask, of, &e, err));
    fd_finding_missing(c->o->graph, of->finding, of);
    fd_comparison_keep(c, &of->first, &e);
    return FD_OK;
}

/* What the bounds have room for: what replay leaves has not, or what has the direction of a bug. */
static fd_code find_below_bounds(fd_comparison *c, fd_attribution *of, fd_error *err) {
    fd_diagnose_options ask = fd_comparison_question(c, &of->first, of, FD_CANDIDATE);
    fd_causes *causes = &c->verdict->diagnosis.causes;
    fd_node_finding left = {0};
    bool by_direction = !fd_class_leaves_nothing(of->numerics); /* what is left of a row names better elsewhere */
    if (by_direction && !c->below.named) FD_TRY(fd_find_below_bounds(&ask, of, &c->below, causes, err));
    /* beside what the engine is meant to do, which the class does not say, more is left than the class leaves */
    if (!c->below.named && !of->first_stays) FD_TRY(fd_resolve_suspects(&ask, of, &left, err));
    if (!by_direction && !c->below.named) FD_TRY(fd_find_below_bounds(&ask, of, &c->below, causes, err));
    FD_TRY(begin_at_first_layer(c, of, err));
    if (left.finding == FD_FOUND_NOTHING || c->below.named) return FD_OK;
    if (fd_is_said_own_way(c->verdict, c->o->graph->nodes[left.node].name)) return FD_OK;
    fd_remark r = reason_at(c, left.usual > 0 ? FD_REASON_LARGE_ERRORS : FD_REASON_RESIDUAL, &left);
    r.n[0] = left.n_odd;
    r.n[1] = (int64_t)(left.usual * 1e12);
    snprintf(r.other, sizeof r.other, "%.1e", left.left);
    fd_verdict_reason(c->verdict, r);
    return FD_OK;
}

/* Nothing was introduced on either side: bits that differ are no divergence, unless the tokens say so. */
static void report_noise(fd_comparison *c, const fd_attribution *cand) {
    fd_verdict *v = c->verdict;
    const fd_divergence *was = &v->divergence;
    if (was->kind == FD_DIVERGED_VALUES) {
        fd_remark r = {FD_NOTE_FIRST_BITS, .n = {was->step, was->pos}};
        snprintf(r.node, sizeof r.node, "%s", was->node);
        fd_verdict_note(v, r);
        v->next[0] = '\0';
        v->first_bits = *was;
    }
    v->divergence = (fd_divergence){0};
    if (cand->n_inconclusive) add_inconclusive(c, &cand->inconclusive);
    if (v->replay.evidence.undecided && !fd_is_said_own_way(v, ""))
        fd_verdict_reason(v, (fd_remark){FD_REASON_CLASS_UNDECIDED});
    if (c->own_ways && !v->flip.choice_known)
        fd_verdict_reason(v, (fd_remark){FD_REASON_CHOICE_UNRECORDED, .n = {v->flip.fed_pos}});
    if (c->n_pos < 2) fd_verdict_reason(v, (fd_remark){FD_REASON_ONE_POSITION});
    /* every op of both sides is right by its own inputs: a side that was fed its own best token followed its roundings;
     * prompts of different texts are among the reasons */
    if (fd_tokens_of_one_text(c->o->ref, c->o->cand) || (c->own_ways && v->flip.choice_known && !v->flip.chosen))
        fd_tokens_diverge(c->o->ref, c->o->cand, v);
}

static fd_code note_where_name_ends(fd_comparison *c, const fd_attribution *of, bool of_reference, fd_error *err) {
    const fd_verdict_map *map = &c->map[of_reference ? FD_REFERENCE : FD_CANDIDATE];
    fd_diagnose_options ask = fd_comparison_question(c, &of->first, of, of_reference ? FD_REFERENCE : FD_CANDIDATE);
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
static fd_code report_divergence(fd_comparison *c, const fd_attribution *of, bool of_reference, fd_error *err) {
    fd_verdict *v = c->verdict;
    fd_finding_context where = {c->o->graph, c->o->ref, &c->pair, c->n_pos};
    const fd_verdict_map *map = &c->map[of_reference ? FD_REFERENCE : FD_CANDIDATE];
    fd_finding_replay(c->o->graph, of, of_reference, &v->replay);
    const fd_trace *side = of_reference ? c->o->ref : c->o->cand;
    v->replay.extent = fd_extent_of(map->by_pos + (size_t)of->first.node * (size_t)map->n_pos, map->n_pos,
                                    fd_trace_steps(side), fd_trace_n_step(side));
    FD_TRY(fd_finding_divergence(&where, &of->first, of_reference, &v->divergence, err));
    FD_TRY(diagnose_finding(c, of, of_reference, err));
    fd_name_harm(&v->replay.extent, &v->diagnosis.explanation);
    FD_TRY(note_where_name_ends(c, of, of_reference, err));
    fd_diagnose_options how = fd_comparison_question(c, &of->first, of, of_reference ? FD_REFERENCE : FD_CANDIDATE);
    how.finding = &of->not_finite;
    FD_TRY(fd_find_overflow(&how, &v->replay.overflow, err));
    fd_next_of_replay(v, of_reference ? c->o->ref : c->o->cand);
    return FD_OK;
}

/* The map and the measures of the side that the verdict is about. */
static void take_map(fd_comparison *c, int side) {
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
static fd_code attribute_both(fd_comparison *c, fd_attribution of[2], int *side, fd_error *err) {
    fd_verdict *v = c->verdict;
    fd_attribution *cand = &of[FD_CANDIDATE];
    fd_judged_class class_ = {0}, of_reference = {0};
    *side = FD_CANDIDATE;
    FD_TRY(fd_judge_candidate(c, &class_, cand, err));
    FD_TRY(fd_doubt_printed(c, cand, class_.evidence.undecided, err));
    FD_TRY(fd_doubt_cache_type(c, cand, err));
    FD_TRY(fd_doubt_class(c, class_.source == FD_CLASS_INFERRED, cand, err));
    FD_TRY(fd_doubt_one_step(c, cand, err));
    if (cand->n_tensor == 0 && cand->n_inconclusive == 0) {
        fd_remark r = {FD_NOTE_NO_ELEMENTS};
        snprintf(r.text, sizeof r.text, "%s", fd_trace_path(c->o->cand));
        fd_verdict_note(v, r);
        return FD_OK;
    }
    FD_TRY(find_below_bounds(c, cand, err));
    FD_TRY(fd_doubt_narrow(c, cand, class_.source == FD_CLASS_INFERRED, err));
    fd_finding_counts(c->o->graph, cand, fd_class_source_name(class_.source), &v->replay);
    v->replay.evidence = class_.evidence;
    if (!cand->found) FD_TRY(fd_judge_reference(c, &of_reference, &of[FD_REFERENCE], err));
    fd_flips_report(&c->flips, c->o->ref, c->o->cand, v);
    if (!cand->found && of[FD_REFERENCE].found) *side = FD_REFERENCE;
    if (!of[*side].found) {
        report_noise(c, cand);
        return FD_OK;
    }
    FD_TRY(report_divergence(c, &of[*side], *side == FD_REFERENCE, err));
    if (*side == FD_REFERENCE) fd_verdict_note(v, (fd_remark){FD_NOTE_REFERENCE_DEPARTS});
    return FD_OK;
}

static fd_code replay_both(fd_comparison *c, fd_error *err) {
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

/* The candidate's weights, where it recorded no hashes of them: what is replayed with others would blame every op. */
static fd_code find_requantised(fd_comparison *c, fd_error *err) {
    const fd_numerics_class *numerics = c->o->numerics ? c->o->numerics : fd_class_of_trace(c->o->cand);
    const bool exact = numerics && numerics->exact; /* our own, or it says that it has our bits */
    if (exact || c->verdict->weights.compared || c->verdict->status == FD_IDENTICAL) return FD_OK;
    const fd_requantised_options how = {c->o->graph, c->o->cand, c->o->op, fd_trace_n_pos(c->o->cand)};
    return fd_weights_find_requantised(&how, &c->verdict->weights, &c->loaded[FD_CANDIDATE], err);
}

fd_code fd_compare_with_model(const fd_compare_model_options *options, fd_verdict *verdict, fd_error *err) {
    fd_comparison c = {.o = options, .verdict = verdict};
    if (verdict->counts.n_compared == 0) return FD_OK;
    c.memo = fd_product_memo_new(FD_MEMO_MOST);
    fd_code code = fd_weights_against_model(options->graph, options->ref, options->cand, verdict,
                                            &c.loaded[FD_REFERENCE], &c.loaded[FD_CANDIDATE], err);
    if (code == FD_OK) code = find_requantised(&c, err);
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
    fd_product_memo_free(c.memo);
    for (int side = 0; side < 2; side++) fd_loaded_weights_free(&c.loaded[side]);
    return code;
}

#include "compare/replay/judge_verdict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/replay/choice.h"
#include "compare/replay/judge_describe.h"
#include "compare/diagnose/name_rest.h"
#include "compare/replay/z_map.h"
#include "compare/diagnose/weights.h"

typedef struct context {
    const fd_judge_verdict_options *o;
    fd_verdict *verdict;
    fd_trace_pair pair;
    fd_held_weights held[2]; /* reference's, candidate's */
    fd_choices choices;
    fd_verdict_map map[2]; /* of the reference's trace, of the candidate's */
    struct {
        int32_t step, node, pos; /* node -1: none */
    } not_finite; /* the first NaN or Inf that finite inputs gave the side that is judged */
    int32_t n_pos; /* positions whose tokens agree */
    bool own_ways; /* from n_pos on, each side follows its own choices, and is judged on its own tokens */
} context;

enum { REF, CAND };

/* The model as one side ran it. */
static const fd_graph *graph_of(const context *c, int side) {
    return c->held[side].graph ? c->held[side].graph : c->o->graph;
}

static int32_t step_of(const fd_trace *trace, int32_t pos) {
    const fd_trace_step *steps = fd_trace_steps(trace);
    int32_t n = fd_trace_n_step(trace), s = 0;
    while (s < n && pos >= steps[s].pos0 + steps[s].n_pos) s++;
    return s;
}

static void note_not_finite(context *c, const fd_node *node, int32_t pos, int64_t stride, const double *candidate,
                            const double *replayed) {
    for (int64_t i = 0; i < stride; i++) {
        if (isfinite(candidate[i]) || !isfinite(replayed[i])) continue;
        int32_t step = step_of(c->o->ref, pos);
        bool later = step > c->not_finite.step || (step == c->not_finite.step && node->id >= c->not_finite.node);
        if (c->not_finite.node >= 0 && later) return;
        c->not_finite.step = step;
        c->not_finite.node = node->id;
        c->not_finite.pos = pos;
        return;
    }
}

static void describe_not_finite(context *c) {
    fd_verdict_replay *p = &c->verdict->replay;
    if (c->not_finite.node < 0) return;
    snprintf(p->not_finite, sizeof p->not_finite, "%s", c->o->graph->nodes[c->not_finite.node].name);
    p->not_finite_pos = c->not_finite.pos;
}

/* fd_judge_options.see */
static void see_row(void *user, const fd_node *node, int32_t pos, int64_t stride, const double *candidate,
                    const double *replayed, const double *tau, const double *reference) {
    context *c = user;
    note_not_finite(c, node, pos, stride, candidate, replayed);
    fd_z_map_see(&c->map[c->choices.side], node, pos, stride, candidate, replayed, tau);
    fd_choices_see(&c->choices, node, pos, stride, candidate, replayed, tau, reference);
}

/* Judges one trace, the other giving what its inputs had brought along. */
static fd_code judge_side(context *c, int which, const fd_numerics_class *given, fd_class_source *source,
                          fd_judgement *out, fd_error *err) {
    const fd_trace *side = which == CAND ? c->o->cand : c->o->ref, *other = which == CAND ? c->o->ref : c->o->cand;
    fd_judge_options how = {.graph = graph_of(c, which),
                            .unjudged = c->held[which].unknown,
                            .ref = other,
                            .cand = side,
                            .n_pos = c->own_ways ? fd_trace_n_pos(side) : c->n_pos,
                            .n_ref_pos = c->n_pos,
                            .op = c->o->op};
    c->choices.side = which;
    c->not_finite.node = -1;
    *source = FD_CLASS_GIVEN;
    how.numerics = given;
    if (!how.numerics) {
        *source = FD_CLASS_RECORDED;
        how.numerics = fd_class_of_trace(side);
    }
    if (!how.numerics) {
        *source = FD_CLASS_INFERRED;
        FD_TRY(fd_infer_class(&how, &how.numerics, err));
    }
    how.see = see_row;
    how.see_user = c;
    FD_TRY(fd_z_map_open(how.graph, how.n_pos, &c->map[which], err));
    FD_TRY(fd_judge_replay(&how, out, err));
    fd_z_map_finish(&c->map[which], out);
    return FD_OK;
}

static fd_code name_finding(context *c, const fd_judgement *j, bool of_reference, fd_error *err) {
    fd_name_options how = {.graph = graph_of(c, of_reference ? REF : CAND),
                           .trace = of_reference ? c->o->ref : c->o->cand,
                           .finding = &j->first,
                           .n_pos = j->n_pos,
                           .op = c->o->op,
                           .numerics = j->numerics,
                           .n_output = j->n_output};
    FD_TRY(fd_name_finding(&how, &c->verdict->explanation, err));
    FD_TRY(fd_name_rest(&how, j, &c->verdict->explanation, &c->verdict->rest, err));
    c->verdict->explained = true;
    return FD_OK;
}

/* Nothing was introduced on either side. */
static void decide_noise(context *c, const fd_judgement *cand) {
    fd_verdict *v = c->verdict;
    fd_divergence was = v->divergence;
    memset(&v->divergence, 0, sizeof v->divergence);
    if (was.kind == FD_DIVERGED_VALUES) {
        fd_verdict_note(v, "the first bits differ at %s, step %d, position %d", was.node, was.step, was.pos);
        v->next[0] = '\0';
    }
    if (cand->n_blind) {
        const fd_node *nodes = c->o->graph->nodes;
        char globs[160];
        fd_describe_globs(c->o->graph, cand->blind.span_first, cand->blind.node, globs, sizeof globs);
        fd_verdict_reason(v,
                          "cannot tell at %s: rounding through %s … may hide an error there, for they were not recorded; "
                          "record '%s'",
                          nodes[cand->blind.node].name, nodes[cand->blind.span_first].name, globs);
    }
    if (c->own_ways && !v->choice.choice_known)
        fd_verdict_reason(v, "cannot tell: the tokens part at position %d, and what either side chose is not recorded",
                          v->choice.fed_pos);
    if (c->n_pos < 2)
        fd_verdict_reason(
            v, "cannot tell from one position: RoPE is the identity at position 0 and attention has one weight");
    v->status = v->n_reason ? FD_INCOMPLETE : FD_NOISE;
    /* every op of both sides is right by its own inputs: a side that was fed its own best token followed its roundings;
     * prompts of different texts are among the reasons */
    if (fd_tokens_of_one_text(c->o->ref, c->o->cand) || (c->own_ways && v->choice.choice_known && !v->choice.chosen))
        fd_tokens_diverge(c->o->ref, c->o->cand, v);
}

static void suggest_next(fd_verdict *v, const fd_trace *departs) {
    if (v->replay.tensors[0])
        snprintf(v->next, sizeof v->next, "firstdiff run … -o NARROW.h5 --tensors '%s' of the %s, then compare again",
                 v->replay.tensors, v->replay.of_reference ? "reference" : "candidate");
    else
        fd_verdict_suggest_inspect(v, departs);
}

/* That side introduced an error. */
static fd_code decide_divergence(context *c, const fd_judgement *bad, bool of_reference, fd_error *err) {
    fd_verdict *v = c->verdict;
    fd_judged judged = {c->o->graph, c->o->ref, &c->pair, c->n_pos};
    v->status = FD_DIVERGED;
    fd_describe_finding(c->o->graph, bad, of_reference, &v->replay);
    describe_not_finite(c);
    FD_TRY(fd_describe_divergence(&judged, &bad->first, of_reference, &v->divergence, err));
    FD_TRY(name_finding(c, bad, of_reference, err));
    suggest_next(v, of_reference ? c->o->ref : c->o->cand);
    return FD_OK;
}

static fd_code judge_both(context *c, fd_error *err) {
    const fd_judge_verdict_options *o = c->o;
    fd_class_source source;
    fd_judgement cand = {0}, ref = {0};
    fd_code code = judge_side(c, CAND, o->numerics, &source, &cand, err);
    const fd_judgement *bad = NULL;
    if (code == FD_OK && cand.n_tensor == 0 && cand.n_blind == 0) {
        fd_verdict_note(c->verdict,
                        "replay needs the candidate's elements, and %.150s holds none (record it with --level full)",
                        fd_trace_path(o->cand));
    } else if (code == FD_OK) {
        fd_describe_counts(o->graph, &cand, source, &c->verdict->replay);
        bad = cand.found ? &cand : NULL;
        if (!bad) {
            fd_class_source ref_source;
            code = judge_side(c, REF, NULL, &ref_source, &ref, err);
            if (code == FD_OK && ref.found) bad = &ref;
        }
        if (code == FD_OK) fd_choices_report(&c->choices, o->ref, o->cand, c->verdict);
        if (code == FD_OK && bad) {
            code = decide_divergence(c, bad, bad == &ref, err);
        } else if (code == FD_OK) {
            decide_noise(c, &cand);
        }
        if (bad == &ref)
            fd_verdict_note(
                c->verdict,
                "the candidate follows from its own inputs everywhere: it is the reference that departs here");
    }
    int shown = bad == &ref ? REF : CAND;
    if (code == FD_OK && c->verdict->replay.done) c->verdict->map = c->map[shown];
    if (code == FD_OK && c->verdict->replay.done) c->map[shown] = (fd_verdict_map){0};
    for (int side = 0; side < 2; side++) fd_z_map_free(&c->map[side]);
    fd_judgement_free(&cand);
    fd_judgement_free(&ref);
    return code;
}

fd_code fd_judge_verdict(const fd_judge_verdict_options *options, fd_verdict *verdict, fd_error *err) {
    context c = {.o = options, .verdict = verdict};
    if (verdict->n_compared == 0) return FD_OK;
    fd_code code = fd_weights_against_model(options->graph, options->ref, options->cand, verdict, &c.held[REF],
                                            &c.held[CAND], err);
    bool no_reason_to = verdict->status == FD_IDENTICAL || verdict->divergence.kind == FD_DIVERGED_SHAPE;
    if (code == FD_OK && !no_reason_to) {
        code = fd_trace_pair_open(options->ref, options->cand, &c.pair, err);
        c.n_pos = code == FD_OK ? c.pair.align.first_token_differs : 0;
        c.own_ways = fd_tokens_part(options->ref, options->cand) >= 0 &&
                     !fd_tokens_part_in_prompt(options->ref, options->cand);
        if (code == FD_OK) code = fd_choices_open(options->graph, c.n_pos, &c.choices, err);
        if (code == FD_OK && c.n_pos > 0) code = judge_both(&c, err);
        fd_choices_close(&c.choices);
        fd_trace_pair_close(&c.pair);
    }
    if (code == FD_OK) fd_weights_decide(verdict);
    for (int side = 0; side < 2; side++) fd_held_weights_free(&c.held[side]);
    return code;
}

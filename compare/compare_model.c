#include "compare/compare_model.h"

#include <stdio.h>
#include <string.h>

#include "compare/diagnose/group_findings.h"
#include "compare/diagnose/weights.h"
#include "compare/diff/token_split.h"
#include "compare/replay/argmax_flip.h"
#include "compare/replay/findings.h"
#include "compare/replay/z_map.h"

typedef struct comparison {
    const fd_compare_model_options *o;
    fd_verdict *verdict;
    fd_trace_pair pair;
    fd_loaded_weights loaded[2]; /* reference's, candidate's */
    fd_flips flips;
    fd_verdict_map map[2]; /* of the reference's trace, of the candidate's */
    int32_t n_pos;         /* positions whose tokens agree */
    bool own_ways;         /* from n_pos on, each side follows its own choices, and is judged on its own tokens */
} comparison;

enum { REF, CAND };

/* The model as one side ran it. */
static const fd_graph *graph_of(const comparison *c, int side) {
    return c->loaded[side].graph ? c->loaded[side].graph : c->o->graph;
}

static void add_row(void *user, const fd_attribution_row *row) {
    comparison *c = user;
    fd_z_map_add(&c->map[c->flips.side], row);
    fd_flips_add(&c->flips, row);
}

/* Judges one trace, the other giving what its inputs had brought along. */
static fd_code attribute_side(comparison *c, int which, const fd_numerics_class *given, fd_class_source *source,
                              fd_inferred_class *inferred, fd_attribution *out, fd_error *err) {
    const fd_trace *side = which == CAND ? c->o->cand : c->o->ref, *other = which == CAND ? c->o->ref : c->o->cand;
    fd_attribution_options how = {.graph = graph_of(c, which),
                                  .unjudged = c->loaded[which].unknown,
                                  .ref = other,
                                  .cand = side,
                                  .n_pos = c->own_ways ? fd_trace_n_pos(side) : c->n_pos,
                                  .n_ref_pos = c->n_pos,
                                  .op = c->o->op};
    c->flips.side = which;
    *source = FD_CLASS_GIVEN;
    how.numerics = given;
    if (!how.numerics) {
        *source = FD_CLASS_RECORDED;
        how.numerics = fd_class_of_trace(side);
    }
    if (!how.numerics) {
        *source = FD_CLASS_INFERRED;
        FD_TRY(fd_infer_class(&how, inferred, err));
        how.numerics = inferred->numerics;
    }
    how.on_row = add_row;
    how.user = c;
    FD_TRY(fd_z_map_open(how.graph, how.n_pos, &c->map[which], err));
    FD_TRY(fd_attribute_errors(&how, out, err));
    fd_z_map_finish(&c->map[which], out);
    return FD_OK;
}

static fd_code name_finding(comparison *c, const fd_attribution *j, bool of_reference, fd_error *err) {
    fd_diagnose_options how = {.graph = graph_of(c, of_reference ? REF : CAND),
                               .trace = of_reference ? c->o->ref : c->o->cand,
                               .finding = &j->first,
                               .n_pos = j->n_pos,
                               .op = c->o->op,
                               .numerics = j->numerics,
                               .n_output = j->n_output};
    FD_TRY(fd_diagnose(&how, &c->verdict->explanation, err));
    FD_TRY(fd_group_findings(&how, j, &c->verdict->explanation, &c->verdict->causes, err));
    c->verdict->explained = true;
    return FD_OK;
}

/* Nothing was introduced on either side. */
static void decide_noise(comparison *c, const fd_attribution *cand) {
    fd_verdict *v = c->verdict;
    fd_divergence was = v->divergence;
    memset(&v->divergence, 0, sizeof v->divergence);
    if (was.kind == FD_DIVERGED_VALUES) {
        fd_verdict_note(v, "the first bits differ at %s, step %d, position %d", was.node, was.step, was.pos);
        v->next[0] = '\0';
    }
    if (cand->n_inconclusive) {
        const fd_node *nodes = c->o->graph->nodes;
        char globs[160];
        fd_finding_globs(c->o->graph, cand->inconclusive.span_first, cand->inconclusive.node, globs, sizeof globs);
        fd_verdict_reason(
            v,
            "cannot tell at %s: rounding through %s … may hide an error there, for they were not recorded; "
            "record '%s'",
            nodes[cand->inconclusive.node].name, nodes[cand->inconclusive.span_first].name, globs);
    }
    if (v->replay.undecided)
        fd_verdict_reason(v,
                          "cannot tell whether the engine rounds as %s or has a bug: no tensor shows that class but by having "
                          "room for the errors; record more of the ops, or give --candidate",
                          v->replay.numerics);
    if (c->own_ways && !v->flip.choice_known)
        fd_verdict_reason(v, "cannot tell: the tokens part at position %d, and what either side chose is not recorded",
                          v->flip.fed_pos);
    if (c->n_pos < 2)
        fd_verdict_reason(
            v, "cannot tell from one position: RoPE is the identity at position 0 and attention has one weight");
    v->status = v->n_reason ? FD_INCOMPLETE : FD_NOISE;
    /* every op of both sides is right by its own inputs: a side that was fed its own best token followed its roundings;
     * prompts of different texts are among the reasons */
    if (fd_tokens_of_one_text(c->o->ref, c->o->cand) || (c->own_ways && v->flip.choice_known && !v->flip.chosen))
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
static fd_code decide_divergence(comparison *c, const fd_attribution *bad, bool of_reference, fd_error *err) {
    fd_verdict *v = c->verdict;
    fd_finding_context where = {c->o->graph, c->o->ref, &c->pair, c->n_pos};
    v->status = FD_DIVERGED;
    fd_finding_replay(c->o->graph, bad, of_reference, &v->replay);
    FD_TRY(fd_finding_divergence(&where, &bad->first, of_reference, &v->divergence, err));
    FD_TRY(name_finding(c, bad, of_reference, err));
    suggest_next(v, of_reference ? c->o->ref : c->o->cand);
    return FD_OK;
}

static fd_code attribute_both(comparison *c, fd_error *err) {
    const fd_compare_model_options *o = c->o;
    fd_class_source source;
    fd_inferred_class inferred = {.decided = true}, ref_inferred;
    fd_attribution cand = {0}, ref = {0};
    fd_code code = attribute_side(c, CAND, o->numerics, &source, &inferred, &cand, err);
    const fd_attribution *bad = NULL;
    if (code == FD_OK && cand.n_tensor == 0 && cand.n_inconclusive == 0) {
        fd_verdict_note(c->verdict,
                        "replay needs the candidate's elements, and %.150s holds none (record it with --level full)",
                        fd_trace_path(o->cand));
    } else if (code == FD_OK) {
        fd_finding_counts(o->graph, &cand, source, &c->verdict->replay);
        snprintf(c->verdict->replay.evidence, sizeof c->verdict->replay.evidence, "%s", inferred.evidence);
        c->verdict->replay.undecided = !inferred.decided;
        bad = cand.found ? &cand : NULL;
        if (!bad) {
            fd_class_source ref_source;
            code = attribute_side(c, REF, NULL, &ref_source, &ref_inferred, &ref, err);
            if (code == FD_OK && ref.found) bad = &ref;
        }
        if (code == FD_OK) fd_flips_report(&c->flips, o->ref, o->cand, c->verdict);
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
    fd_attribution_free(&cand);
    fd_attribution_free(&ref);
    return code;
}

fd_code fd_compare_with_model(const fd_compare_model_options *options, fd_verdict *verdict, fd_error *err) {
    comparison c = {.o = options, .verdict = verdict};
    if (verdict->n_compared == 0) return FD_OK;
    fd_code code = fd_weights_against_model(options->graph, options->ref, options->cand, verdict, &c.loaded[REF],
                                            &c.loaded[CAND], err);
    bool no_reason_to = verdict->status == FD_IDENTICAL || verdict->divergence.kind == FD_DIVERGED_SHAPE;
    if (code == FD_OK && !no_reason_to) {
        code = fd_trace_pair_open(options->ref, options->cand, &c.pair, err);
        c.n_pos = code == FD_OK ? c.pair.align.first_token_differs : 0;
        c.own_ways =
            fd_tokens_part(options->ref, options->cand) >= 0 && !fd_tokens_part_in_prompt(options->ref, options->cand);
        if (code == FD_OK) code = fd_flips_open(options->graph, c.n_pos, &c.flips, err);
        if (code == FD_OK && c.n_pos > 0) code = attribute_both(&c, err);
        fd_flips_close(&c.flips);
        fd_trace_pair_close(&c.pair);
    }
    if (code == FD_OK) fd_weights_decide(verdict);
    for (int side = 0; side < 2; side++) fd_loaded_weights_free(&c.loaded[side]);
    return code;
}

#include "compare/judge_verdict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/choice.h"
#include "compare/name_rest.h"
#include "compare/z_map.h"
#include "compare/trace_pair.h"
#include "compare/weights.h"

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

static fd_code input_equality(context *c, const char *name, int32_t pos, bool cached, fd_equality *out, fd_error *err) {
    const fd_node_pair *input = fd_trace_pair_find(&c->pair, name);
    *out = FD_EQUALITY_UNKNOWN;
    if (!input) return FD_OK;
    for (int32_t p = cached ? 0 : pos; p <= pos; p++) {
        fd_look look;
        FD_TRY(fd_trace_pair_look(&c->pair, input, p, &look, err));
        *out = look.result == FD_LOOK_DIFFERS ? FD_UNEQUAL
               : look.result == FD_LOOK_SAME  ? FD_EQUAL
                                              : FD_EQUALITY_UNKNOWN;
        if (*out != FD_EQUAL) return FD_OK;
    }
    return FD_OK;
}

static fd_code describe_inputs(context *c, const fd_node *node, fd_divergence *d, fd_error *err) {
    const fd_graph *graph = c->o->graph;
    bool unequal = false, unknown = false;
    d->n_input = 0;
    if (node->op == FD_OP_EMBED) {
        snprintf(d->inputs[0].name, sizeof d->inputs[0].name, "tokens");
        d->inputs[0].equality = d->inputs_equal = FD_EQUAL;
        d->n_input = 1;
        return FD_OK;
    }
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        if (node->input[k] < 0) continue;
        const fd_node *input = &graph->nodes[node->input[k]];
        int32_t at = d->n_input++;
        snprintf(d->inputs[at].name, sizeof d->inputs[at].name, "%s", input->name);
        FD_TRY(input_equality(c, input->name, d->pos, input->op == FD_OP_KV_WRITE, &d->inputs[at].equality, err));
        unequal |= d->inputs[at].equality == FD_UNEQUAL;
        unknown |= d->inputs[at].equality == FD_EQUALITY_UNKNOWN;
    }
    d->inputs_equal = unequal ? FD_UNEQUAL : unknown ? FD_EQUALITY_UNKNOWN : FD_EQUAL;
    return FD_OK;
}

/* Reference and candidate at the worst element stand first: the first bit that differs may be noise. */
static void put_worst_first(fd_divergence *d, const fd_node_finding *f, bool of_reference) {
    double ref = of_reference ? f->candidate : f->reference, cand = of_reference ? f->reference : f->candidate;
    fd_tensor_view one[2] = {{&ref, FD_F64}, {&cand, FD_F64}};
    fd_tensor_diff diff;
    fd_diff_tensors(one[0], one[1], 1, d->diff.grid, &diff);
    d->diff.first = (fd_element_diff){f->worst, ref, cand, diff.first.index == 0 ? diff.first.ulp : 0};
}

static fd_code describe_divergence(context *c, const fd_node_finding *f, bool of_reference, fd_error *err) {
    const fd_node *node = &c->o->graph->nodes[f->node];
    fd_divergence *d = &c->verdict->divergence;
    const fd_trace *steps = c->o->ref;
    *d = (fd_divergence){.kind = FD_DIVERGED_VALUES,
                         .layer = node->layer,
                         .step = f->step,
                         .pos = f->pos,
                         .n_dim = node->n_dim,
                         .over_kv = node->over_kv};
    snprintf(d->node, sizeof d->node, "%s", node->name);
    snprintf(d->op, sizeof d->op, "%s", fd_op_name(node->op));
    fd_node_attributes(c->o->graph, node, d->attributes, sizeof d->attributes);
    d->step_kind = f->step < fd_trace_n_step(steps) ? fd_trace_steps(steps)[f->step].kind : FD_STEP_DECODE;
    for (int32_t i = 0; i < node->n_dim; i++) d->dims[i] = node->shape[i];
    if (node->over_kv) d->dims[node->n_dim - 1] = f->pos + 1;
    fd_shape_text(node->n_dim, node->shape, node->over_kv, d->ref_shape, sizeof d->ref_shape);
    memcpy(d->cand_shape, d->ref_shape, sizeof d->cand_shape);
    if (f->pos >= c->n_pos) return FD_OK; /* the reference went another way: nothing to set beside it */
    const fd_node_pair *np = fd_trace_pair_find(&c->pair, node->name);
    if (np && np->same_shape) {
        fd_look look = {0};
        FD_TRY(fd_trace_pair_values(&c->pair, np, f->pos, &look, err));
        d->has_values = look.has_diff;
        if (look.has_diff) {
            d->diff = look.diff;
            put_worst_first(d, f, of_reference);
        }
    }
    return describe_inputs(c, node, d, err);
}

/* Appends to a list of globs unless it is there. */
static void add_glob(char *to, size_t size, const char *glob) {
    size_t at = strlen(to), n = strlen(glob);
    for (const char *p = to; (p = strstr(p, glob)) != NULL; p += n)
        if ((p == to || p[-1] == ',') && (p[n] == ',' || p[n] == '\0')) return;
    if (at + n + 2 < size) snprintf(to + at, size - at, "%s%s", at ? "," : "", glob);
}

/* What to record so that the next verdict is about one node of the span: its layer with what that reads, or, where it runs
 * through several, the stream between them. */
static void advise_globs(const context *c, int32_t first, int32_t last, char *to, size_t size) {
    const fd_node *nodes = c->o->graph->nodes;
    int32_t low = INT32_MAX, high = -1;
    to[0] = '\0';
    for (int32_t i = first; i <= last; i++) {
        if (nodes[i].layer < 0) continue;
        low = nodes[i].layer < low ? nodes[i].layer : low;
        high = nodes[i].layer > high ? nodes[i].layer : high;
    }
    if (high > low) add_glob(to, size, "token_embd,*.l_out");
    for (int32_t i = first; i <= last && high <= low; i++) {
        char glob[80];
        if (nodes[i].layer >= 0)
            snprintf(glob, sizeof glob, "blk.%d.*", nodes[i].layer);
        else
            snprintf(glob, sizeof glob, "%s", nodes[i].name);
        add_glob(to, size, glob);
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (nodes[i].input[k] >= 0 && nodes[nodes[i].input[k]].layer != nodes[i].layer)
                add_glob(to, size, nodes[nodes[i].input[k]].name);
    }
    if (nodes[last].layer < 0 || high > low) add_glob(to, size, nodes[last].name);
}

static void describe_finding(context *c, const fd_judgement *j, bool of_reference) {
    fd_verdict_replay *p = &c->verdict->replay;
    const fd_node_finding *f = &j->first;
    const fd_node *nodes = c->o->graph->nodes;
    snprintf(p->finding, sizeof p->finding, "%s", fd_finding_name(f->finding));
    p->of_reference = of_reference;
    p->z = f->z;
    p->candidate = f->candidate;
    p->replayed = f->replayed;
    p->tau = f->tau;
    p->shares_known = f->has_reference && f->introduced + f->propagated > 0;
    p->introduced = f->introduced;
    p->propagated = f->propagated;
    p->n_element = f->n_element;
    p->n_beyond = f->n_beyond;
    p->n_slice_beyond = f->n_slice_beyond;
    p->n_nan_new = f->n_nan_new;
    if (f->span_first != f->node) snprintf(p->span_first, sizeof p->span_first, "%s", nodes[f->span_first].name);
    snprintf(p->missing, sizeof p->missing, "%s", j->missing);
    if (j->next.finding != FD_FOUND_NOTHING) snprintf(p->next, sizeof p->next, "%s", nodes[j->next.node].name);
    p->n_before = j->n_before;
    if (j->first.span_first != f->node) advise_globs(c, j->first.span_first, f->node, p->tensors, sizeof p->tensors);
    if (c->not_finite.node < 0) return;
    snprintf(p->not_finite, sizeof p->not_finite, "%s", nodes[c->not_finite.node].name);
    p->not_finite_pos = c->not_finite.pos;
}

static void describe_counts(context *c, const fd_judgement *j, fd_class_source source) {
    fd_verdict_replay *p = &c->verdict->replay;
    p->done = true;
    snprintf(p->numerics, sizeof p->numerics, "%s", j->numerics->name);
    snprintf(p->source, sizeof p->source, "%s", fd_class_source_name(source));
    p->n_tensor = j->n_tensor;
    p->n_noise = j->n_by_finding[FD_FOUND_NOISE];
    p->n_inherited = j->n_by_finding[FD_FOUND_INHERITED];
    p->n_amplifier = j->n_by_finding[FD_FOUND_AMPLIFIER];
    p->n_introduced = j->n_by_finding[FD_FOUND_INTRODUCED] + j->n_by_finding[FD_FOUND_BOTH];
    p->noisiest_z = j->noisiest.finding == FD_FOUND_NOTHING ? -1 : j->noisiest.z;
    if (p->noisiest_z >= 0) snprintf(p->noisiest, sizeof p->noisiest, "%s", c->o->graph->nodes[j->noisiest.node].name);
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
        advise_globs(c, cand->blind.span_first, cand->blind.node, globs, sizeof globs);
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
        describe_counts(c, &cand, source);
        bad = cand.found ? &cand : NULL;
        if (!bad) {
            fd_class_source ref_source;
            code = judge_side(c, REF, NULL, &ref_source, &ref, err);
            if (code == FD_OK && ref.found) bad = &ref;
        }
        if (code == FD_OK) fd_choices_report(&c->choices, o->ref, o->cand, c->verdict);
        if (code == FD_OK && bad) {
            describe_finding(c, bad, bad == &ref);
            code = describe_divergence(c, &bad->first, bad == &ref, err);
            if (code == FD_OK) code = name_finding(c, bad, bad == &ref, err);
            c->verdict->status = FD_DIVERGED;
            suggest_next(c->verdict, bad == &ref ? o->ref : o->cand);
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

#include "compare/compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/diff/inputs.h"
#include "compare/diff/prompt_tokens.h"
#include "compare/diff/scan.h"
#include "compare/diff/token_split.h"
#include "compare/describe.h"
#include "compare/report/next.h"

typedef struct comparison {
    fd_trace_pair pair;
    const fd_compare_options *options;
    fd_verdict *verdict;
    int32_t limit; /* positions from here on are not comparable: the tokens differ */
} comparison;

static bool allowed(const fd_compare_options *options, const char *name) {
    return fd_name_matches(options->allow_missing, options->n_allow_missing, name);
}

static void state_what_limits(const comparison *c) {
    fd_verdict *v = c->verdict;
    const fd_alignment *a = &c->pair.align;
    const fd_verdict_side *sides[] = {&v->ref, &v->cand};
    for (int i = 0; i < 2; i++)
        if (!sides[i]->complete)
            fd_verdict_reason(v, (fd_remark){FD_REASON_RUN_STOPPED, .side = i, .n = {sides[i]->n_pos}});
    if (v->ref.n_pos != v->cand.n_pos)
        fd_verdict_reason(v, (fd_remark){FD_REASON_POSITIONS_DIFFER, .n = {v->ref.n_pos, v->cand.n_pos}});
    if (a->same_model == FD_EQUALITY_UNKNOWN) fd_verdict_note(v, (fd_remark){FD_NOTE_MODEL_UNRECORDED});
    if (!fd_trace_tokens(c->pair.ref) || !fd_trace_tokens(c->pair.cand))
        fd_verdict_reason(v, (fd_remark){FD_REASON_TOKENS_UNRECORDED});
    fd_verdict_note_numerics(v);
}

/* True when the two ran different models, which is then the reason for not comparing anything. */
static bool different_models(const comparison *c) {
    fd_verdict *v = c->verdict;
    bool arch = c->pair.align.same_arch == FD_UNEQUAL, model = c->pair.align.same_model == FD_UNEQUAL;
    if (arch || model) fd_verdict_reason(v, (fd_remark){arch ? FD_REASON_OTHER_ARCH : FD_REASON_OTHER_MODEL});
    return arch || model;
}

static fd_code list_unmatched(const comparison *c, fd_error *err) {
    const fd_alignment *a = &c->pair.align;
    for (int32_t i = 0; i < a->n_only_ref; i++) {
        const char *name = fd_trace_node_at(c->pair.ref, a->only_ref[i])->name;
        FD_TRY(fd_verdict_missing(c->verdict, name, FD_ONLY_IN_REFERENCE, a->n_pos, allowed(c->options, name), err));
    }
    for (int32_t i = 0; i < a->n_only_cand; i++) {
        const char *name = fd_trace_node_at(c->pair.cand, a->only_cand[i])->name;
        FD_TRY(fd_verdict_missing(c->verdict, name, FD_ONLY_IN_CANDIDATE, a->n_pos, allowed(c->options, name), err));
    }
    return FD_OK;
}

static fd_code describe_inputs(comparison *c, const fd_trace_node *node, fd_divergence *d, fd_error *err) {
    for (int32_t i = 0; i < FD_MAX_INPUTS; i++) {
        const char *name = node->inputs[i];
        const fd_node_pair *input = fd_trace_pair_find(&c->pair, name);
        bool cached = input && strcmp(fd_trace_node_at(c->pair.ref, input->ref)->op, fd_op_name(FD_OP_KV_WRITE)) == 0;
        fd_equality equality;
        if (!name[0]) continue;
        FD_TRY(fd_input_equality(&c->pair, name, cached, d->pos, &equality, err));
        fd_divergence_add_input(name, equality, d);
    }
    fd_divergence_sum_inputs(d);
    return FD_OK;
}

static fd_code describe_divergence(comparison *c, const fd_node_pair *np, const fd_trace_step *step, int32_t step_at,
                                   int32_t pos, fd_look *look, fd_error *err) {
    fd_divergence *d = &c->verdict->divergence;
    const fd_trace_node *node = fd_trace_node_at(c->pair.ref, np->ref);
    const fd_trace_node *other = fd_trace_node_at(c->pair.cand, np->cand);
    d->kind = np->same_shape ? FD_DIVERGED_VALUES : FD_DIVERGED_SHAPE;
    snprintf(d->node, sizeof d->node, "%s", node->name);
    snprintf(d->op, sizeof d->op, "%s", node->op);
    d->layer = node->layer;
    d->step = step_at;
    d->step_kind = step->kind;
    d->pos = pos;
    d->n_dim = node->n_dim;
    d->over_kv = node->over_kv;
    for (int32_t i = 0; i < node->n_dim; i++) d->dims[i] = node->shape[i];
    if (node->over_kv) d->dims[node->n_dim - 1] = pos + 1;
    fd_shape_text(node->n_dim, node->shape, node->over_kv, d->ref_shape, sizeof d->ref_shape);
    fd_shape_text(other->n_dim, other->shape, other->over_kv, d->cand_shape, sizeof d->cand_shape);
    snprintf(d->attributes, sizeof d->attributes, "%s", node->params);
    int32_t in_graph = c->options->graph ? fd_graph_find(c->options->graph, node->name) : -1;
    if (in_graph >= 0)
        fd_node_attributes(c->options->graph, &c->options->graph->nodes[in_graph], d->attributes, sizeof d->attributes);
    if (np->same_shape && !look->has_diff) FD_TRY(fd_trace_pair_values(&c->pair, np, pos, look, err));
    d->has_values = look->has_diff;
    if (look->has_diff) d->diff = look->diff;
    return describe_inputs(c, node, d, err);
}

static fd_code compare_node(comparison *c, const fd_node_pair *np, const fd_scanned *seen, const fd_trace_step *step,
                            int32_t step_at, fd_error *err) {
    fd_verdict *v = c->verdict;
    const fd_trace_node *node = fd_trace_node_at(c->pair.ref, np->ref);
    bool first = v->divergence.kind == FD_NO_DIVERGENCE, differs = seen->differs >= 0;
    if (seen->read && np->same_shape)
        v->counts.grid =
            fd_coarser(v->counts.grid, fd_coarser(node->dtype, fd_trace_node_at(c->pair.cand, np->cand)->dtype));
    if (first && differs) {
        fd_look look;
        FD_TRY(fd_trace_pair_look(&c->pair, np, seen->differs, &look, err));
        FD_TRY(describe_divergence(c, np, step, step_at, seen->differs, &look, err));
    }
    if (seen->n_unknown)
        FD_TRY(
            fd_verdict_missing(v, node->name, FD_NOT_RECORDED, seen->n_unknown, allowed(c->options, node->name), err));
    if (!seen->n_seen) return FD_OK;
    v->counts.n_compared++;
    v->counts.n_by_fingerprint += !seen->read;
    if (v->divergence.kind == FD_NO_DIVERGENCE)
        v->counts.n_before++;
    else if (!first)
        v->counts.n_after_differ += differs, v->counts.n_after_identical += !differs;
    return FD_OK;
}

static fd_code compare_nodes(comparison *c, const fd_trace_step *step, int32_t step_at, fd_error *err) {
    int32_t end = step->pos0 + step->n_pos < c->limit ? step->pos0 + step->n_pos : c->limit;
    int32_t n_pair = c->pair.align.n_pair, batch = fd_scan_batch(&c->pair, end - step->pos0);
    if (batch > n_pair) batch = n_pair;
    fd_scanned *seen = malloc((size_t)batch * sizeof *seen + 1);
    fd_code code = seen ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "comparison of %d tensors: out of memory", n_pair);
    for (int32_t at = 0; code == FD_OK && at < n_pair; at += batch) {
        int32_t n = n_pair - at < batch ? n_pair - at : batch;
        code = fd_scan(&c->pair, at, n, step->pos0, end, seen, err);
        for (int32_t i = 0; code == FD_OK && i < n; i++)
            code = compare_node(c, &c->pair.align.pairs[at + i], &seen[i], step, step_at, err);
    }
    free(seen);
    return code;
}

/* Step `step_at`: the tokens, then the nodes. */
static fd_code compare_step(comparison *c, const fd_trace_step *step, int32_t step_at, fd_error *err) {
    fd_verdict *v = c->verdict;
    if (c->limit < step->pos0 + step->n_pos && v->divergence.kind == FD_NO_DIVERGENCE) {
        fd_divergence *d = &v->divergence;
        d->kind = FD_DIVERGED_TOKENS;
        snprintf(d->node, sizeof d->node, "tokens");
        d->layer = -1;
        d->step = step_at;
        d->step_kind = step->kind;
        d->pos = c->limit;
        d->ref_token = fd_trace_tokens(c->pair.ref)[c->limit];
        d->cand_token = fd_trace_tokens(c->pair.cand)[c->limit];
    }
    if (step->pos0 >= c->limit) return FD_OK;
    v->counts.n_step++;
    return compare_nodes(c, step, step_at, err);
}

/* The reference's steps, cut at the last common position; positions that no step claims (a foreign trace, or a run
 * killed inside a step) come as one more. */
static fd_code compare_steps(comparison *c, fd_error *err) {
    const fd_trace_step *steps = fd_trace_steps(c->pair.ref);
    int32_t n_step = fd_trace_n_step(c->pair.ref), n_pos = c->pair.align.n_pos, at = 0, i = 0;
    for (; i < n_step && at < n_pos; i++) {
        fd_trace_step step = steps[i];
        if (step.n_pos > n_pos - step.pos0) step.n_pos = n_pos - step.pos0;
        FD_TRY(compare_step(c, &step, i, err));
        at = step.pos0 + step.n_pos;
        if (c->options->progress) c->options->progress(c->options->progress_user, at, n_pos);
    }
    fd_trace_step rest = {at, n_pos - at, i ? FD_STEP_DECODE : FD_STEP_PREFILL};
    return rest.n_pos > 0 ? compare_step(c, &rest, i, err) : FD_OK;
}

static fd_code compare_all(comparison *c, fd_error *err) {
    fd_verdict *v = c->verdict;
    if (different_models(c)) return FD_OK;
    v->counts.n_pos = c->pair.align.n_pos;
    c->limit = c->pair.align.first_token_differs;
    FD_TRY(list_unmatched(c, err));
    FD_TRY(compare_steps(c, err));
    fd_next_of_bits(v, c->pair.cand);
    return FD_OK;
}

fd_code fd_compare_traces(const fd_trace *ref, const fd_trace *cand, const fd_compare_options *options, fd_verdict *out,
                          fd_error *err) {
    memset(out, 0, sizeof *out);
    out->counts.after_known = true;
    out->counts.grid = FD_F64;
    fd_verdict_side_of_trace(ref, &out->ref);
    fd_verdict_side_of_trace(cand, &out->cand);
    comparison c = {.options = options, .verdict = out};
    FD_TRY(fd_trace_pair_open(ref, cand, &c.pair, err));
    c.pair.peers = options->peers;
    c.pair.memory = options->memory ? options->memory : FD_COMPARE_MEMORY;
    state_what_limits(&c);
    fd_code code = compare_all(&c, err);
    fd_trace_pair_close(&c.pair);
    FD_TRY(code);
    fd_tokens_of_prompts(ref, cand, out);
    fd_prompt_tokens_note(options->tokenizer, ref, cand, out);
    fd_verdict_decide(out);
    return FD_OK;
}

#include "compare/diff/lockstep_comparator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/diff/align.h"
#include "compare/describe.h"

fd_code fd_lockstep_comparator_open(fd_lockstep_comparator *out, fd_error *err) {
    size_t n_node = (size_t)out->graph->n_node;
    out->seen_until = calloc(n_node, sizeof *out->seen_until);
    out->seen_step = malloc(sizeof *out->seen_step * n_node);
    if (!out->seen_until || !out->seen_step)
        return fd_fail(err, FD_ERR_MEMORY, "lockstep over %zu nodes: out of memory", n_node);
    for (size_t i = 0; i < n_node; i++) out->seen_step[i] = -1;
    return FD_OK;
}

void fd_lockstep_comparator_close(fd_lockstep_comparator *comparator) {
    free(comparator->seen_until);
    free(comparator->seen_step);
    fd_comparator_free(&comparator->rows);
}

/* Everything compared so far is identical, or the runs would have stopped: what is left to ask of an input is whether
 * it was compared at every position that the node reads. */
static void describe_inputs(const fd_lockstep_comparator *c, const fd_node *node, fd_divergence *d) {
    d->inputs_equal = FD_EQUAL;
    if (node->op == FD_OP_EMBED) {
        snprintf(d->inputs[0].name, sizeof d->inputs[0].name, "tokens");
        d->inputs[d->n_input++].equality = FD_EQUAL;
        return;
    }
    for (int32_t i = 0; i < FD_MAX_INPUTS; i++) {
        if (node->input[i] < 0) continue;
        const fd_node *input = &c->graph->nodes[node->input[i]];
        bool seen =
            input->op == FD_OP_KV_WRITE ? c->seen_until[input->id] > d->pos : c->seen_step[input->id] == d->step;
        int32_t at = d->n_input++;
        snprintf(d->inputs[at].name, sizeof d->inputs[at].name, "%s", input->name);
        d->inputs[at].equality = seen ? FD_EQUAL : FD_EQUALITY_UNKNOWN;
        if (!seen) d->inputs_equal = FD_EQUALITY_UNKNOWN;
    }
}

/* What was found of one tensor, row by row up to the first that differs. */
typedef struct finding {
    int32_t n_unknown; /* positions */
    bool by_fingerprint, differs;
} finding;

/* Counts one row's result; the first that differs becomes the divergence. */
static void add_row(fd_lockstep_comparator *c, const fd_observation *o, int32_t row, const fd_look *look,
                    finding *found) {
    fd_divergence *d = &c->verdict->divergence;
    if (look->has_diff) c->verdict->counts.grid = fd_coarser(c->verdict->counts.grid, look->diff.grid);
    found->n_unknown += look->result == FD_LOOK_UNKNOWN;
    found->by_fingerprint &= look->by_fingerprint;
    found->differs = look->result == FD_LOOK_DIFFERS;
    if (!found->differs) return;
    fd_divergence_at(c->graph, &c->graph->nodes[o->node->id], o->step, c->step_kind, o->pos0 + row, d);
    d->has_values = look->has_diff;
    if (look->has_diff) d->diff = look->diff;
}

/* Counts the tensor; FD_STOP when it differs. */
static fd_code conclude_tensor(fd_lockstep_comparator *c, const fd_observation *o, finding found, fd_error *err) {
    fd_verdict *v = c->verdict;
    const fd_node *node = &c->graph->nodes[o->node->id];
    c->n_shown++;
    bool allowed = fd_name_matches(c->allow_missing, c->n_allow_missing, node->name);
    if (found.n_unknown) FD_TRY(fd_verdict_missing(v, node->name, FD_NOT_RECORDED, found.n_unknown, allowed, err));
    if (found.differs) {
        v->counts.n_compared++;
        describe_inputs(c, node, &v->divergence);
        return FD_STOP;
    }
    if (found.n_unknown == 0) {
        c->seen_step[node->id] = o->step;
        if (c->seen_until[node->id] == o->pos0) c->seen_until[node->id] = o->pos0 + o->n_pos;
    }
    if (found.n_unknown < o->n_pos) {
        v->counts.n_compared++;
        v->counts.n_before++;
        v->counts.n_by_fingerprint += found.by_fingerprint;
    }
    return FD_OK;
}

fd_code fd_lockstep_unmatched(fd_lockstep_comparator *c, const fd_observation *only, bool in_ref, fd_error *err) {
    const char *name = only->node->name;
    c->n_shown++;
    return fd_verdict_missing(c->verdict, name, in_ref ? FD_ONLY_IN_REFERENCE : FD_ONLY_IN_CANDIDATE, only->n_pos,
                              fd_name_matches(c->allow_missing, c->n_allow_missing, name), err);
}

static fd_tensor_side live_side(const fd_observation *o, int32_t row) {
    return (fd_tensor_side){.dtype = o->dtype, .live = o, .row = row};
}

fd_code fd_lockstep_compare(fd_lockstep_comparator *c, const fd_observation *ref, const fd_observation *cand,
                            fd_error *err) {
    if (ref->pos0 != cand->pos0 || ref->n_pos != cand->n_pos)
        return fd_fail(err, FD_ERR_INPUT, "%s: positions %d+%d on one side, %d+%d on the other", ref->node->name,
                       ref->pos0, ref->n_pos, cand->pos0, cand->n_pos);
    finding found = {0};
    for (int32_t row = 0; row < ref->n_pos && !found.differs; row++) {
        fd_tensor_side a = live_side(ref, row), b = live_side(cand, row);
        fd_look look = {0};
        FD_TRY(fd_compare_tensors(&c->rows, &a, &b, &look, err));
        add_row(c, ref, row, &look, &found);
    }
    return conclude_tensor(c, ref, found, err);
}

/* ---- a trace on one side ---- */

/* Most traces have the graph's nodes in the graph's order. */
static int32_t trace_node(const fd_lockstep_comparator *c, const fd_node *node) {
    if (node->id < fd_trace_n_node(c->trace) && strcmp(fd_trace_node_at(c->trace, node->id)->name, node->name) == 0)
        return node->id;
    return fd_trace_find(c->trace, node->name);
}

unsigned fd_lockstep_wants(void *user, const fd_node *node) {
    const fd_lockstep_comparator *c = user;
    int32_t at = trace_node(c, node);
    if (at < 0 || !c->same_contract) return FD_WANT_DATA;
    return fd_trace_node_at(c->trace, at)->has_data && !c->fingerprints_only ? FD_WANT_DATA : FD_WANT_FINGERPRINT;
}

static fd_code compare_row(fd_lockstep_comparator *c, const fd_observation *live, int32_t row, int32_t at,
                           fd_look *look, fd_error *err) {
    fd_fingerprint hash;
    fd_tensor_side recorded = fd_side_of_trace(c->trace, at, live->pos0 + row, c->same_contract);
    fd_tensor_side shown = live_side(live, row);
    if (recorded.fingerprint && recorded.dtype == live->dtype) {
        hash = fd_observation_fingerprint(live, row);
        shown.fingerprint = &hash;
    }
    const fd_tensor_side *ref = c->trace_is_ref ? &recorded : &shown, *cand = c->trace_is_ref ? &shown : &recorded;
    FD_TRY(fd_compare_tensors(&c->rows, ref, cand, look, err));
    if (look->by_fingerprint && look->result == FD_LOOK_DIFFERS && !c->fingerprints_only)
        return fd_compare_elements(&c->rows, ref, cand, look, err);
    return FD_OK;
}

fd_code fd_lockstep_compare_trace(fd_lockstep_comparator *c, const fd_observation *live, fd_error *err) {
    const fd_node *node = live->node;
    int32_t at = trace_node(c, node);
    if (at < 0) return fd_lockstep_unmatched(c, live, !c->trace_is_ref, err);
    const fd_trace_node *stored = fd_trace_node_at(c->trace, at);
    finding found = {.by_fingerprint = true};
    if (!fd_same_shape((fd_tensor_shape){node->n_dim, node->shape, node->over_kv},
                       (fd_tensor_shape){stored->n_dim, stored->shape, stored->over_kv})) {
        fd_divergence *d = &c->verdict->divergence;
        fd_divergence_at(c->graph, node, live->step, c->step_kind, live->pos0, d);
        d->kind = FD_DIVERGED_SHAPE;
        fd_shape_text(stored->n_dim, stored->shape, stored->over_kv, c->trace_is_ref ? d->ref_shape : d->cand_shape,
                      sizeof d->ref_shape);
        found.differs = true;
        return conclude_tensor(c, live, found, err);
    }
    for (int32_t row = 0; row < live->n_pos && !found.differs; row++) {
        fd_look look = {0};
        FD_TRY(compare_row(c, live, row, at, &look, err));
        add_row(c, live, row, &look, &found);
    }
    return conclude_tensor(c, live, found, err);
}

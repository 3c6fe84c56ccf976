#include "compare/diff/lockstep_judge.h"
#include "compare/report/describe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REF, CAND };

typedef enum look { SAME, DIFFERS, UNKNOWN } look;

fd_code fd_judge_open(const fd_graph *graph, const fd_trace *trace, bool trace_is_ref, const fd_exec *exec,
                      fd_verdict *verdict, fd_judge *out, fd_error *err) {
    *out = (fd_judge){.graph = graph, .trace = trace, .trace_is_ref = trace_is_ref, .verdict = verdict};
    out->seen_until = calloc((size_t)graph->n_node, sizeof *out->seen_until);
    out->seen_step = malloc(sizeof *out->seen_step * (size_t)graph->n_node);
    if (!out->seen_until || !out->seen_step) {
        fd_judge_close(out);
        return fd_fail(err, FD_ERR_MEMORY, "lockstep over %d nodes: out of memory", graph->n_node);
    }
    for (int32_t i = 0; i < graph->n_node; i++) out->seen_step[i] = -1;
    if (trace) {
        const fd_trace_info *info = fd_trace_get_info(trace);
        out->same_contract = strcmp(info->numerics, fd_exec_numerics_name(exec)) == 0 &&
                             info->contract == fd_numerics_contract(exec->numerics);
    }
    return FD_OK;
}

void fd_judge_close(fd_judge *judge) {
    free(judge->seen_until);
    free(judge->seen_step);
    free(judge->buffer[REF]);
    free(judge->buffer[CAND]);
    *judge = (fd_judge){0};
}

static size_t element_bytes(uint32_t dtype) {
    return dtype == FD_F64 ? sizeof(double) : sizeof(float);
}

static fd_code reserve(fd_judge *judge, int side, int64_t n, fd_error *err) {
    size_t bytes = (size_t)n * sizeof(double);
    if (bytes <= judge->capacity[side]) return FD_OK;
    void *grown = realloc(judge->buffer[side], bytes);
    if (!grown) return fd_fail(err, FD_ERR_MEMORY, "a row of %lld elements: out of memory", (long long)n);
    judge->buffer[side] = grown;
    judge->capacity[side] = bytes;
    return FD_OK;
}

/* Row `row` without padding: in place where there is none. */
static fd_code live_row(fd_judge *judge, int side, const fd_observation *o, int32_t row, fd_tensor_view *out,
                        fd_error *err) {
    int64_t n = fd_node_elements(o->node, o->pos0 + row + 1);
    out->dtype = o->dtype;
    out->data = (const char *)o->data + (size_t)(row * o->row_stride) * element_bytes(o->dtype);
    if (n == o->row_stride) return FD_OK;
    FD_TRY(reserve(judge, side, n, err));
    fd_observation_copy(o, row, judge->buffer[side]);
    out->data = judge->buffer[side];
    return FD_OK;
}

static void compare_views(fd_judge *judge, fd_tensor_view ref, fd_tensor_view cand, int64_t n, uint32_t stored,
                          fd_tensor_diff *diff) {
    uint32_t grid = fd_coarser(stored, fd_coarser(ref.dtype, cand.dtype));
    fd_diff_tensors(ref, cand, n, grid, diff);
    judge->verdict->counts.grid = fd_coarser(judge->verdict->counts.grid, grid);
}

/* Everything compared so far is identical, or the runs would have stopped: what is left to ask of an input is whether
 * it was compared at every position the node reads. */
static void describe_inputs(const fd_judge *judge, const fd_node *node, fd_divergence *d) {
    d->inputs_equal = FD_EQUAL;
    if (node->op == FD_OP_EMBED) {
        snprintf(d->inputs[0].name, sizeof d->inputs[0].name, "tokens");
        d->inputs[d->n_input++].equality = FD_EQUAL;
        return;
    }
    for (int32_t i = 0; i < FD_MAX_INPUTS; i++) {
        if (node->input[i] < 0) continue;
        const fd_node *input = &judge->graph->nodes[node->input[i]];
        bool seen = input->op == FD_OP_KV_WRITE ? judge->seen_until[input->id] > d->pos
                                                : judge->seen_step[input->id] == d->step;
        int32_t at = d->n_input++;
        snprintf(d->inputs[at].name, sizeof d->inputs[at].name, "%s", input->name);
        d->inputs[at].equality = seen ? FD_EQUAL : FD_EQUALITY_UNKNOWN;
        if (!seen) d->inputs_equal = FD_EQUALITY_UNKNOWN;
    }
}

fd_code fd_judge_unmatched(fd_judge *judge, const fd_observation *only, bool in_ref, fd_error *err) {
    const char *name = only->node->name;
    judge->n_shown++;
    return fd_verdict_missing(judge->verdict, name, in_ref ? FD_ONLY_IN_REFERENCE : FD_ONLY_IN_CANDIDATE, only->n_pos,
                              fd_name_matches(judge->allow_missing, judge->n_allow_missing, name), err);
}

/* Ends the tensor: counts it, and says FD_STOP when it differed. */
static fd_code conclude(fd_judge *judge, const fd_node *node, const fd_observation *o, int32_t n_unknown,
                        bool by_fingerprint, bool differs, fd_error *err) {
    fd_verdict *v = judge->verdict;
    judge->n_shown++;
    bool allowed = fd_name_matches(judge->allow_missing, judge->n_allow_missing, node->name);
    if (n_unknown) FD_TRY(fd_verdict_missing(v, node->name, FD_NOT_RECORDED, n_unknown, allowed, err));
    if (differs) {
        v->counts.n_compared++;
        describe_inputs(judge, node, &v->divergence);
        return FD_STOP;
    }
    if (n_unknown == 0) {
        judge->seen_step[node->id] = o->step;
        if (judge->seen_until[node->id] == o->pos0) judge->seen_until[node->id] = o->pos0 + o->n_pos;
    }
    if (n_unknown < o->n_pos) {
        v->counts.n_compared++;
        v->counts.n_before++;
        v->counts.n_by_fingerprint += by_fingerprint;
    }
    return FD_OK;
}

fd_code fd_judge_live(fd_judge *judge, const fd_observation *ref, const fd_observation *cand, fd_error *err) {
    const fd_node *node = &judge->graph->nodes[ref->node->id];
    if (ref->pos0 != cand->pos0 || ref->n_pos != cand->n_pos)
        return fd_fail(err, FD_ERR_INPUT, "%s: positions %d+%d on one side, %d+%d on the other", node->name, ref->pos0,
                       ref->n_pos, cand->pos0, cand->n_pos);
    bool differs = false;
    for (int32_t row = 0; row < ref->n_pos && !differs; row++) {
        fd_divergence *d = &judge->verdict->divergence;
        fd_tensor_view a, b;
        FD_TRY(live_row(judge, REF, ref, row, &a, err));
        FD_TRY(live_row(judge, CAND, cand, row, &b, err));
        int64_t n = fd_node_elements(node, ref->pos0 + row + 1);
        compare_views(judge, a, b, n, FD_F64, &d->diff);
        differs = d->diff.n_differ != 0;
        if (!differs) continue;
        d->has_values = true;
        fd_divergence_at(judge->graph, node, ref->step, judge->step_kind, ref->pos0 + row, d);
    }
    return conclude(judge, node, ref, 0, false, differs, err);
}

/* The trace's elements at `pos`, widened; false when it has none. */
static fd_code trace_row(fd_judge *judge, int side, int32_t at, int32_t pos, fd_tensor_view *out, bool *present,
                         fd_error *err) {
    const fd_trace_node *stored = fd_trace_node_at(judge->trace, at);
    *present = false;
    if (!stored->has_data) return FD_OK;
    FD_TRY(reserve(judge, side, fd_trace_elements(stored, pos), err));
    bool wide = stored->dtype == FD_F64;
    fd_error why = {0};
    fd_code code = fd_trace_read(judge->trace, at, pos, wide ? NULL : judge->buffer[side],
                                 wide ? judge->buffer[side] : NULL, &why);
    if (code == FD_ERR_INCOMPLETE) return FD_OK;
    if (code != FD_OK) *err = why;
    *present = code == FD_OK;
    *out = (fd_tensor_view){judge->buffer[side], wide ? FD_F64 : FD_F32};
    return code;
}

static fd_code trace_values(fd_judge *judge, const fd_observation *live, int32_t row, int32_t at, bool *present,
                            fd_error *err) {
    fd_tensor_view mine, recorded;
    int32_t pos = live->pos0 + row;
    int trace_side = judge->trace_is_ref ? REF : CAND;
    FD_TRY(trace_row(judge, trace_side, at, pos, &recorded, present, err));
    if (!*present) return FD_OK;
    FD_TRY(live_row(judge, !trace_side, live, row, &mine, err));
    int64_t n = fd_node_elements(live->node, pos + 1);
    compare_views(judge, judge->trace_is_ref ? recorded : mine, judge->trace_is_ref ? mine : recorded, n,
                  fd_trace_node_at(judge->trace, at)->dtype, &judge->verdict->divergence.diff);
    return FD_OK;
}

static fd_code look_at_row(fd_judge *judge, const fd_observation *live, int32_t row, int32_t at, look *out,
                           bool *by_fingerprint, fd_error *err) {
    const fd_trace_node *stored = fd_trace_node_at(judge->trace, at);
    *out = UNKNOWN;
    if (live->pos0 + row >= fd_trace_n_pos(judge->trace)) return FD_OK;
    const fd_fingerprint *recorded = fd_trace_fingerprint(judge->trace, at, live->pos0 + row);
    fd_divergence *d = &judge->verdict->divergence;
    if (judge->same_contract && recorded && stored->dtype == live->dtype) {
        fd_fingerprint mine = fd_observation_fingerprint(live, row);
        *out = mine.lo == recorded->lo && mine.hi == recorded->hi ? SAME : DIFFERS;
        if (*out == SAME) return FD_OK;
        FD_TRY(trace_values(judge, live, row, at, &d->has_values, err));
        if (d->has_values && d->diff.n_differ == 0)
            return fd_fail(err, FD_ERR_INPUT,
                           "%s: %s at position %d: the elements do not have the recorded fingerprint",
                           fd_trace_path(judge->trace), stored->name, live->pos0 + row);
        return FD_OK;
    }
    *by_fingerprint = false;
    FD_TRY(trace_values(judge, live, row, at, &d->has_values, err));
    *out = !d->has_values ? UNKNOWN : d->diff.n_differ ? DIFFERS : SAME;
    return FD_OK;
}

static bool same_shape(const fd_node *node, const fd_trace_node *stored) {
    if (node->over_kv != stored->over_kv) return false;
    if (node->n_dim != stored->n_dim)
        return !node->over_kv && (stored->n_dim == 1 || node->n_dim == 1) &&
               fd_trace_elements(stored, 0) == fd_node_elements(node, 1);
    for (int32_t i = 0; i < node->n_dim; i++)
        if (stored->shape[i] != node->shape[i]) return false;
    return true;
}

fd_code fd_judge_trace(fd_judge *judge, const fd_observation *live, fd_error *err) {
    const fd_node *node = live->node;
    fd_verdict *v = judge->verdict;
    int32_t at = fd_trace_find(judge->trace, node->name);
    if (at < 0) return fd_judge_unmatched(judge, live, !judge->trace_is_ref, err);
    if (!same_shape(node, fd_trace_node_at(judge->trace, at))) {
        const fd_trace_node *stored = fd_trace_node_at(judge->trace, at);
        fd_divergence *d = &v->divergence;
        fd_divergence_at(judge->graph, node, live->step, judge->step_kind, live->pos0, d);
        d->kind = FD_DIVERGED_SHAPE;
        fd_shape_text(stored->n_dim, stored->shape, stored->over_kv, judge->trace_is_ref ? d->ref_shape : d->cand_shape,
                      sizeof d->ref_shape);
        return conclude(judge, node, live, 0, false, true, err);
    }
    int32_t n_unknown = 0;
    bool by_fingerprint = true, differs = false;
    for (int32_t row = 0; row < live->n_pos && !differs; row++) {
        look result;
        FD_TRY(look_at_row(judge, live, row, at, &result, &by_fingerprint, err));
        n_unknown += result == UNKNOWN;
        differs = result == DIFFERS;
        if (differs)
            fd_divergence_at(judge->graph, node, live->step, judge->step_kind, live->pos0 + row, &v->divergence);
    }
    return conclude(judge, node, live, n_unknown, by_fingerprint, differs, err);
}

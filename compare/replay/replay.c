#include "compare/replay/internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/replay/cuda_kernels.h"
#include "compare/replay/factors.h"

/* ---- opening ---- */

static fd_code check_shape(const fd_replay *replay, const fd_node *node, fd_error *err) {
    int32_t at = replay->in_trace[node->id];
    if (at < 0) return FD_OK;
    const fd_trace_node *recorded = fd_trace_node_at(replay->o.trace, at);
    int64_t found = fd_trace_elements(recorded, 4), expected = fd_node_elements(node, 5);
    if (found == expected) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT, "%s: %s has %lld elements at position 4, the model's graph %lld",
                   fd_trace_path(replay->o.trace), node->name, (long long)found, (long long)expected);
}

static fd_code find_nodes(fd_replay *replay, fd_error *err) {
    const fd_graph *graph = replay->o.graph;
    size_t n = (size_t)graph->n_node;
    replay->in_trace = malloc(sizeof *replay->in_trace * n);
    replay->last_reader = malloc(sizeof *replay->last_reader * n);
    replay->state = calloc(n, sizeof *replay->state);
    if (!replay->in_trace || !replay->last_reader || !replay->state)
        return fd_fail(err, FD_ERR_MEMORY, "replay of %zu nodes: out of memory", n);
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        bool ignored = replay->o.ignored && replay->o.ignored[i];
        replay->in_trace[i] = ignored ? -1 : fd_trace_find(replay->o.trace, node->name);
        replay->last_reader[i] = i;
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (node->input[k] >= 0) replay->last_reader[node->input[k]] = i;
        FD_TRY(check_shape(replay, node, err));
    }
    return FD_OK;
}

fd_code fd_replay_open(const fd_replay_options *options, fd_replay **out, fd_error *err) {
    *out = NULL;
    fd_replay *replay = calloc(1, sizeof *replay);
    if (!replay) return fd_fail(err, FD_ERR_MEMORY, "replay: out of memory");
    replay->o = *options;
    replay->rounded = -1;
    fd_replay_read_kv_types(replay);
    fd_code code = find_nodes(replay, err);
    if (code != FD_OK) fd_replay_close(replay);
    *out = code == FD_OK ? replay : NULL;
    return code;
}

static void drop_state(fd_node_state *state) {
    free(state->x);
    free(state->e);
    free(state->again);
    for (int d = 0; d < FD_REPLAY_SAMPLES; d++) free(state->samples[d]);
    free(state->unknown);
    *state = (fd_node_state){.missing = state->missing, .span_first = state->span_first};
}

static void drop_node_rows(fd_replay *replay) {
    free(replay->y);
    free(replay->tau);
    free(replay->candidate);
    free(replay->scratch);
    free(replay->room);
    free(replay->sampled[0]);
    for (int d = 0; d < FD_REPLAY_SAMPLES; d++) replay->sampled[d] = NULL;
    replay->y = replay->tau = replay->candidate = replay->scratch = replay->room = NULL;
}

void fd_replay_close(fd_replay *replay) {
    if (!replay) return;
    for (int32_t i = 0; replay->state && i < replay->o.graph->n_node; i++) drop_state(&replay->state[i]);
    drop_node_rows(replay);
    free((void *)replay->rounded_weight.data);
    free(replay->recorded);
    free(replay->state);
    free(replay->in_trace);
    free(replay->last_reader);
    free(replay);
}

fd_code fd_replay_range(fd_replay *replay, int32_t pos0, int32_t n_pos, fd_error *err) {
    assert(pos0 == replay->n_kv && n_pos > 0);
    for (int32_t i = 0; i < replay->o.graph->n_node; i++)
        if (replay->o.graph->nodes[i].op != FD_OP_KV_WRITE) drop_state(&replay->state[i]);
    replay->pos0 = pos0;
    replay->n_pos = n_pos;
    replay->n_kv = pos0 + n_pos;
    free(replay->recorded);
    replay->recorded = calloc((size_t)n_pos, sizeof *replay->recorded);
    return replay->recorded ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "replay: out of memory");
}

/* ---- what was recorded ---- */

fd_code fd_replay_read_row(const fd_trace *trace, int32_t in_trace, const fd_node *node, int32_t pos, int32_t n_kv,
                           double *scratch, double *row, bool *present, fd_error *err) {
    fd_error why = {0};
    *present = false;
    if (in_trace < 0 || !fd_trace_node_at(trace, in_trace)->has_data) return FD_OK;
    fd_code code;
#pragma omp critical(fd_trace) /* classes are tried side by side, and a trace is read by one thread at a time */
    code = fd_trace_read(trace, in_trace, pos, NULL, node->over_kv ? scratch : row, &why);
    if (code == FD_ERR_INCOMPLETE) return FD_OK;
    if (code != FD_OK) {
        *err = why;
        return code;
    }
    *present = true;
    if (!node->over_kv) return FD_OK;
    const double padding = node->op == FD_OP_ATTN_SCORES ? -INFINITY : 0;
    const int32_t first = node->op == FD_OP_ATTN_SCORES ? fd_node_first_seen(node, pos) : 0;
    for (int64_t h = 0; h < node->shape[0]; h++)
        for (int32_t t = 0; t < n_kv; t++) {
            const double *c = &scratch[h * (pos + 1) + t];
            row[h * n_kv + t] = t > pos || (t < first && fd_score_is_hidden(*c)) ? padding : *c;
        }
    return FD_OK;
}

static fd_code read_rows(fd_replay *replay, const fd_node *node, int64_t stride, bool *all, fd_error *err) {
    *all = true;
    for (int32_t r = 0; r < replay->n_pos; r++) {
        FD_TRY(fd_replay_read_row(replay->o.trace, replay->in_trace[node->id], node, replay->pos0 + r, replay->n_kv,
                                  replay->scratch, replay->candidate + r * stride, &replay->recorded[r], err));
        *all &= replay->recorded[r];
    }
    return FD_OK;
}

/* ---- a node ---- */

static fd_code reserve(fd_replay *replay, const fd_node *node, int64_t stride, fd_error *err) {
    size_t rows = sizeof(double) * (size_t)(replay->n_pos * stride);
    size_t y = node->op == FD_OP_KV_WRITE ? sizeof(double) * (size_t)(replay->n_kv * stride) : rows;
    drop_node_rows(replay);
    replay->y = calloc(1, y);
    replay->tau = calloc(1, rows);
    replay->candidate = calloc(1, rows);
    replay->scratch = malloc(sizeof(double) * (size_t)stride);
    replay->room = calloc(1, rows);
    if (replay->room && replay->y && replay->tau && replay->candidate && replay->scratch) return FD_OK;
    return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
}

/* Where y starts: a cache's own range follows the earlier positions. */
static double *own_rows(const fd_replay *replay, const fd_node *node, int64_t stride) {
    return replay->y + (node->op == FD_OP_KV_WRITE ? replay->pos0 * stride : 0);
}

/* A cache is read as it is kept: of an engine that keeps it in the type of the trace, these are the very values. */
static bool is_as_kept(const fd_replay *replay, const fd_node *node, uint32_t stored) {
    return fd_node_is_kv_cache(node) && replay->o.numerics->u_kv >= fd_dtype_roundoff(stored);
}

/* Hands the rows to the readers: recorded ones with the rounding of what the trace stores, others as replayed. */
static fd_code store_state(fd_replay *replay, const fd_node *node, int64_t stride, int32_t span_first, fd_error *err) {
    fd_node_state *state = &replay->state[node->id];
    bool cache = node->op == FD_OP_KV_WRITE;
    int64_t before = cache ? replay->pos0 * stride : 0, n = replay->n_pos * stride;
    double *x = realloc(state->x, sizeof *x * (size_t)(before + n));
    if (x) state->x = x;
    double *e = realloc(state->e, sizeof *e * (size_t)(before + n));
    if (e) state->e = e;
    if (!x || !e) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);

    int32_t at = replay->in_trace[node->id];
    uint32_t stored = at < 0 ? FD_F64 : fd_trace_node_at(replay->o.trace, at)->dtype;
    bool narrower = (stored == FD_F16 || stored == FD_BF16) && !is_as_kept(replay, node, stored);
    double u = narrower ? fd_dtype_roundoff(stored) : 0, tiny = narrower ? fd_dtype_tiny(stored) : 0;
    if (replay->o.records_rounded && !cache) u = replay->o.numerics->u_out, tiny = replay->o.numerics->tiny_out;
    double *rows = fd_replay_reads_unrounded(replay, node) ? own_rows(replay, node, stride) : replay->candidate;
    bool any_missing = false;
    for (int32_t r = 0; r < replay->n_pos; r++) {
        any_missing |= !replay->recorded[r];
        if (!replay->recorded[r]) fd_replay_move_last_bits(replay, node, rows + r * stride, replay->pos0 + r, stride);
        for (int64_t i = r * stride; i < (r + 1) * stride; i++) {
            double c = rows[i];
            x[before + i] = c;
            e[before + i] = replay->recorded[r] && isfinite(c) ? u * fabs(c) + tiny / 2 : 0;
        }
    }
    bool earlier = cache && replay->pos0 > 0 && state->missing;
    if (any_missing && !(earlier && state->span_first < span_first)) state->span_first = span_first;
    state->missing = any_missing || earlier;
    if (replay->o.numerics->exact || replay->o.values_alone || !(any_missing || state->samples[0])) return FD_OK;
    return fd_replay_store_samples(replay, node, stride, before, err);
}

/* The first unrecorded node that this one's value would be computed through. */
static int32_t span_of(const fd_replay *replay, const fd_node *node) {
    int32_t first = node->id;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        int32_t in = node->input[k];
        if (in < 0) continue;
        if (replay->state[in].missing && replay->state[in].span_first < first) first = replay->state[in].span_first;
    }
    return first;
}

/* Runs the node into replay->y and fills replay->tau and replay->sampled. */
static fd_code run_node(fd_replay *replay, const fd_node *node, fd_error *err) {
    const fd_graph *graph = replay->o.graph;
    bool exact = replay->o.numerics->exact;
    const bool bounded = !exact && !replay->o.values_alone;
    void *table = NULL;
    double *input_error = NULL;
    fd_op_args args = {.graph = graph,
                       .node = node,
                       .pos0 = replay->pos0,
                       .n_pos = replay->n_pos,
                       .n_kv = replay->n_kv,
                       .n_ctx = replay->n_kv,
                       .tokens = replay->o.tokens + replay->pos0,
                       .out = replay->y};
    fd_bound_args bound = {.op = &args,
                           .candidate = replay->candidate,
                           .numerics = replay->o.numerics,
                           .kv_type = fd_replay_kv_type(replay, node),
                           .n_output = replay->o.n_output,
                           .device = replay->o.device,
                           .memo = replay->o.memo,
                           .stored = FD_F64};
    if (replay->in_trace[node->id] >= 0)
        bound.stored = fd_trace_node_at(replay->o.trace, replay->in_trace[node->id])->dtype;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        if (node->input[k] >= 0) {
            args.in[k] = replay->state[node->input[k]].x;
            bound.in_error[k] = replay->state[node->input[k]].e;
        }
    }
    for (int k = 0; k < FD_MAX_WEIGHTS; k++)
        if (node->weight[k] >= 0) args.weight[k] = &graph->weights[node->weight[k]];
    fd_code code = node->op == FD_OP_ROPE ? fd_replay_rope_tables(replay, &args, &table, err) : FD_OK;
    if (code == FD_OK && node->op != FD_OP_TOP_K && bounded)
        code = node->op == FD_OP_KV_WRITE ? fd_replay_cache_flips(replay, node, &input_error, err)
                                          : fd_replay_flip_error(replay, node, args.weight[0], &input_error, err);
    if (code == FD_OK && bounded) code = fd_cuda_input_error(replay, node, args.weight[0], &input_error, err);
    if (input_error) bound.in_error[0] = input_error;
    if (node->op == FD_OP_TOP_K && bounded) {
        code = fd_replay_router_error(replay, node, &input_error, err);
        bound.in_error[0] = input_error;
    }
    if (code == FD_OK)
        code = exact ? fd_replay_run_exact(replay, args, replay->y, err)
                     : fd_replay_run_with_samples(replay, node, args, err);
    const fd_numerics_class *of_product = NULL;
    fd_numerics_class with_room;
    bound.numerics = fd_cuda_class_of_bounds(replay, node, &with_room);
    if (code == FD_OK) code = fd_replay_choose_factors(replay, node, args, &of_product, err);
    if (code == FD_OK) code = fd_replay_choose_kernel(replay, node, args, err);
    if (of_product) bound.numerics = of_product;
    if (code == FD_OK && bounded) code = fd_bound(&bound, replay->tau, err);
    if (code == FD_OK) fd_cuda_widen_bounds(replay, node, args.weight[0], input_error);
    if (code == FD_OK && bounded) code = fd_replay_recompute(replay, node, &bound, err);
    free(table);
    free(input_error);
    return code;
}

fd_code fd_replay_node(fd_replay *replay, int32_t id, bool wanted, fd_replayed *out, fd_error *err) {
    const fd_node *node = &replay->o.graph->nodes[id];
    int64_t stride = fd_node_row_stride(node, replay->n_kv);
    bool all;
    FD_TRY(reserve(replay, node, stride, err));
    FD_TRY(read_rows(replay, node, stride, &all, err));
    if (node->op == FD_OP_KV_WRITE && replay->pos0 > 0)
        memcpy(replay->y, replay->state[id].x, sizeof(double) * (size_t)(replay->pos0 * stride));
    int32_t span_first = span_of(replay, node);
    bool ran = wanted || !all || fd_replay_reads_unrounded(replay, node);
    if (ran) {
        FD_TRY(run_node(replay, node, err));
        const double *y = own_rows(replay, node, stride);
        for (int32_t r = 0; r < replay->n_pos; r++)
            if (!replay->recorded[r])
                memcpy(replay->candidate + r * stride, y + r * stride, sizeof *y * (size_t)stride);
    }
    FD_TRY(store_state(replay, node, stride, span_first, err));
    if (ran) FD_TRY(fd_replay_add_spread(replay, node, stride, err));
    FD_TRY(fd_replay_spread_unknown(replay, node, stride, ran, err));
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        int32_t in = node->input[k];
        if (in >= 0 && replay->last_reader[in] == id && replay->o.graph->nodes[in].op != FD_OP_KV_WRITE)
            drop_state(&replay->state[in]);
    }
    *out = (fd_replayed){.stride = stride,
                         .recorded = replay->recorded,
                         .candidate = replay->candidate,
                         .y = ran ? own_rows(replay, node, stride) : NULL,
                         .tau = ran ? replay->tau : NULL,
                         .span_first = span_first};
    return FD_OK;
}

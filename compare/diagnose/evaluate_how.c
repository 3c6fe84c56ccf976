/* Ops that a hypothesis runs in another way: with another state, by another statistic, or twice. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/diagnose/workbench.h"

/* ---- the state of recurrent ops ---- */

/* Rows of the step that row `row` is of, from it on; *start: the step's first position. */
static int32_t rest_of_step(const fd_explain_request *r, const fd_op_args *args, int32_t row, int32_t *start) {
    const int32_t position = args->pos0 + row, first = r->args.pos0 - r->args.batch_offset, left = args->n_pos - row;
    *start = r->args.row_by_row || first > position ? position : first;
    if (r->args.row_by_row) return 1;
    return first > position && first - position < left ? first - position : left;
}

/* What a step that begins at `start` finds in the cache of a convolution, or of a token shift, is what stood before `found`. */
static void move_rows(float *cache, int64_t width, int32_t start, int32_t found) {
    for (int32_t k = 1; k <= start && found < start; k++) {
        float *to = cache + (start - k) * width;
        if (found - k >= 0)
            memcpy(to, cache + (found - k) * width, sizeof *to * (size_t)width);
        else
            memset(to, 0, sizeof *to * (size_t)width);
    }
}

/* Rows of zeros leave a scan's state as it is. */
static void set_state(const fd_evaluation *ev, const fd_node *node, float *cache, int64_t width, int32_t start) {
    const fd_explain_request *r = ev->bench->request;
    const int32_t series = r->args.pos0 - r->args.batch_offset, late = ev->h.which == FD_STATE_LATE;
    const int32_t found = (series < start ? series : start) - late;
    if (ev->h.which == FD_STATE_FRESH)
        memset(cache, 0, sizeof *cache * (size_t)(start * width));
    else if (node->op == FD_OP_CONV || node->op == FD_OP_TOKEN_SHIFT)
        move_rows(cache, width, start, found);
    else if (found >= 0)
        memset(cache + found * width, 0, sizeof *cache * (size_t)((start - found) * width));
}

/* Step by step, each with the state that the hypothesis has. */
static void run_with_state(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_node *node = args->node, *nodes = args->graph->nodes;
    const int64_t width = fd_node_row_stride(&nodes[node->input[0]], args->n_kv),
                  stride = fd_node_row_stride(node, args->n_kv);
    const size_t size = sizeof(float) * (size_t)(args->n_kv * width);
    float *cache = malloc(size);
    for (int32_t row = 0, n, start; cache && row < args->n_pos; row += n) {
        fd_op_args step = *args;
        n = rest_of_step(ev->bench->request, args, row, &start);
        step.pos0 += row;
        step.n_pos = n;
        step.tokens += row;
        step.out = (float *)args->out + row * stride;
        for (int k = 1; k < FD_MAX_INPUTS; k++)
            if (node->input[k] >= 0)
                step.in[k] = (const float *)args->in[k] + row * fd_node_row_stride(&nodes[node->input[k]], args->n_kv);
        memcpy(cache, args->in[0], size);
        set_state(ev, node, cache, width, start);
        step.in[0] = cache;
        ev->bench->request->op(FD_NUMERICS_EXACT, &step);
    }
    for (int64_t i = 0; !cache && i < args->n_pos * stride; i++) ((float *)args->out)[i] = NAN; /* no memory: no fit */
    free(cache);
}

/* ---- others ---- */

static void run_by_statistic(const fd_evaluation *ev, const fd_op_args *args) {
    int32_t *first = malloc(sizeof *first * (size_t)args->n_pos);
    ev->bench->request->op(FD_NUMERICS_EXACT, args);
    for (int32_t row = 0, start; first && row < args->n_pos; row++) {
        rest_of_step(ev->bench->request, args, row, &start);
        first[row] = start > args->pos0 ? start - args->pos0 : 0;
    }
    if (first)
        fd_hypothesis_statistic(&ev->h, args->node, args->in[0], first, args->out, args->n_pos,
                                fd_node_width(args->node));
    free(first);
}

static void run_twice(const fd_evaluation *ev, const fd_op_args *args) {
    const size_t size = sizeof(float) * (size_t)(args->n_pos * fd_node_row_stride(args->node, args->n_kv));
    float *once = malloc(size);
    fd_op_args again = *args;
    ev->bench->request->op(FD_NUMERICS_EXACT, args);
    if (once) memcpy(once, args->out, size);
    again.in[0] = once;
    if (once) ev->bench->request->op(FD_NUMERICS_EXACT, &again);
    free(once);
}

bool fd_bench_runs_otherwise(const fd_evaluation *ev, const fd_node *node) {
    const fd_guess guess = ev->h.guess;
    return (guess == FD_GUESS_STATE || guess == FD_GUESS_STATISTIC || guess == FD_GUESS_TWICE) &&
           fd_hypothesis_may_concern(&ev->h, node);
}

void fd_bench_run_otherwise(const fd_evaluation *ev, const fd_op_args *args) {
    if (ev->h.guess == FD_GUESS_STATE) run_with_state(ev, args);
    if (ev->h.guess == FD_GUESS_STATISTIC) run_by_statistic(ev, args);
    if (ev->h.guess == FD_GUESS_TWICE) run_twice(ev, args);
}

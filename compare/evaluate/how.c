/* Ops that a hypothesis runs in another way: with another state, by another statistic, twice, or with other heads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/evaluate/workbench.h"
#include "compare/hypothesis/round_type.h"
#include "compare/products/run_op.h"
#include "model/gguf/quant.h"

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
        fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, &step);
    }
    for (int64_t i = 0; !cache && i < args->n_pos * stride; i++) ((float *)args->out)[i] = NAN; /* no memory: no fit */
    free(cache);
}

/* ---- others ---- */

static void run_by_statistic(const fd_evaluation *ev, const fd_op_args *args) {
    int32_t *first = malloc(sizeof *first * (size_t)args->n_pos);
    fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, args);
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
    fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, args);
    if (once) memcpy(once, args->out, size);
    again.in[0] = once;
    if (once) fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, &again);
    free(once);
}

/* For each K/V head the op on a cache of that head alone, of which the query heads that read it are taken. */
static void run_mapped_queries(const fd_evaluation *ev, const fd_op_args *args) {
    const fd_hypothesis *h = &ev->h;
    const fd_node *cache = &args->graph->nodes[args->node->input[1]];
    const int64_t n_kv = cache->shape[0], dim = cache->shape[1], n_row = args->n_kv;
    const int64_t stride = fd_node_row_stride(args->node, args->n_kv), part = stride / h->n, n = args->n_pos * stride;
    float *rows = malloc(sizeof *rows * (size_t)(n_row * n_kv * dim)), *out = malloc(sizeof *out * (size_t)n);
    fd_op_args own = *args;
    own.in[1] = rows;
    own.out = out;
    for (int64_t head = 0; rows && out && head < n_kv; head++) {
        for (int64_t i = 0; i < n_row * n_kv; i++)
            memcpy(rows + i * dim, (const float *)args->in[1] + (i / n_kv * n_kv + head) * dim,
                   sizeof *rows * (size_t)dim);
        fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, &own);
        for (int64_t at = 0; at < n; at += part)
            if ((int64_t)(h->keys >> 4 * (at % stride / part) & 15) == head)
                memcpy((float *)args->out + at, out + at, sizeof *out * (size_t)part);
    }
    free(rows);
    free(out);
}

static bool maps_queries(const fd_hypothesis *h) {
    return h->guess == FD_GUESS_MAPPED && h->which == FD_MAPPED_QUERIES;
}

/* A norm that rounds before it multiplies by its weight, a gated activation before it multiplies by up: element i is
 * rows[i] · by[i % n_by]. */
typedef struct two_factors {
    float *memory; /* owned; NULL: out of memory */
    float *rows, *by;
    int64_t n, n_by;
} two_factors;

static two_factors factors_of(const fd_evaluation *ev, const fd_op_args *args) {
    const int64_t n = args->n_pos * fd_node_width(args->node);
    const bool norm = args->weight[0] != NULL, table = ev->h.which == FD_ROUNDED_TABLE && !norm;
    two_factors f = {.n = n, .n_by = norm ? args->weight[0]->n_col : n};
    float *ones, *gate;
    f.memory = malloc(sizeof *f.memory * (size_t)(2 * n + 2 * f.n_by));
    if (!f.memory) return f;
    f.rows = f.memory;
    f.by = f.rows + n;
    ones = f.by + f.n_by;
    gate = ones + f.n_by;
    fd_op_args plain = *args;
    fd_weight of_ones = {.dtype = FD_F32, .n_row = 1, .n_col = f.n_by, .data = ones};
    for (int64_t i = 0; i < f.n_by; i++) ones[i] = 1;
    if (norm) {
        fd_dequantize_row(args->weight[0]->dtype, args->weight[0]->data, f.by, f.n_by);
        plain.weight[0] = &of_ones;
    } else {
        memcpy(f.by, args->in[1], sizeof *f.by * (size_t)n);
        plain.in[1] = ones;
    }
    if (table) {
        memcpy(gate, args->in[0], sizeof *gate * (size_t)n);
        fd_round_type_rows(ev->h.other, gate, args->n_pos, fd_node_width(args->node));
        plain.in[0] = gate;
    }
    plain.out = f.rows;
    fd_call_op(ev->bench->request->op, FD_NUMERICS_EXACT, &plain);
    return f;
}

static void run_rounded_factor(const fd_evaluation *ev, const fd_op_args *args) {
    two_factors f = factors_of(ev, args);
    if (!f.memory) return;
    fd_round_type_rows(ev->h.other, f.rows, 1, f.n);
    for (int64_t i = 0; i < f.n; i++) ((float *)args->out)[i] = f.rows[i] * f.by[i % f.n_by];
    free(f.memory);
}

static bool rounds_factor(const fd_hypothesis *h) {
    return h->guess == FD_GUESS_ROUNDED && (h->which == FD_ROUNDED_FACTOR || h->which == FD_ROUNDED_TABLE);
}

fd_code fd_bench_bound_otherwise(const fd_evaluation *ev, const fd_op_args *args, double *tau, fd_error *err) {
    if (!rounds_factor(&ev->h)) return FD_OK;
    two_factors f = factors_of(ev, args);
    double *steps = f.memory ? malloc(3 * sizeof *steps * (size_t)f.n) : NULL;
    for (int64_t i = 0; steps && i < f.n; i++) {
        double by = fabs((double)f.by[i % f.n_by]);
        steps[i] = by > 0 ? tau[i] / by : 0;
    }
    if (steps) fd_round_type_bounds(ev->h.other, f.rows, steps, 1, f.n, steps + f.n);
    for (int64_t i = 0; steps && i < f.n; i++) tau[i] += steps[i] * fabs((double)f.by[i % f.n_by]);
    free(f.memory);
    const bool done = steps != NULL;
    free(steps);
    return done ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", args->node->name);
}

bool fd_bench_runs_otherwise(const fd_evaluation *ev, const fd_node *node) {
    const fd_guess guess = ev->h.guess;
    return (guess == FD_GUESS_STATE || guess == FD_GUESS_STATISTIC || guess == FD_GUESS_TWICE ||
            fd_bench_changes_experts(ev, node) || rounds_factor(&ev->h) || maps_queries(&ev->h) ||
            fd_bench_changes_head_numbers(&ev->h)) &&
           fd_hypothesis_may_concern(&ev->h, node);
}

void fd_bench_run_otherwise(const fd_evaluation *ev, const fd_op_args *args) {
    if (ev->h.guess == FD_GUESS_STATE) run_with_state(ev, args);
    if (ev->h.guess == FD_GUESS_STATISTIC) run_by_statistic(ev, args);
    if (ev->h.guess == FD_GUESS_TWICE) run_twice(ev, args);
    if (fd_bench_changes_experts(ev, args->node)) fd_bench_run_experts(ev, args);
    if (rounds_factor(&ev->h)) run_rounded_factor(ev, args);
    if (fd_bench_changes_head_numbers(&ev->h)) fd_bench_run_head_numbers(ev, args);
    if (maps_queries(&ev->h)) run_mapped_queries(ev, args);
}

#include "compare/replay/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/replay/samples.h"

enum { MANY = 1 << 14 }; /* elements from which threads are worth waking */

/* Rounding through unrecorded ops is sampled: worst cases, handed on from bound to bound, would soon exceed the
 * values themselves. Each sample adds ±τ of its own op to every unrecorded element and runs the following ops on
 * that; τ is λ standard deviations, so a sample spreads λ times as far as roundings do. Four samples: one alone may
 * cancel by chance. */

/* A product's rows do not depend on each other: the samples and the op itself are rows of one, so that weights are decoded
 * once. */
static fd_code run_joined(fd_replay *replay, fd_op_args args, const fd_node_state *in, int64_t n_out, fd_error *err) {
    int64_t n = replay->n_pos * fd_node_row_stride(&replay->o.graph->nodes[args.node->input[0]], replay->n_kv);
    double *y = args.out, *x = malloc(sizeof *x * (FD_REPLAY_SAMPLES + 1) * (size_t)n);
    if (!x) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", args.node->name);
    for (int d = 0; d < FD_REPLAY_SAMPLES; d++) memcpy(x + d * n, in->samples[d], sizeof *x * (size_t)n);
    memcpy(x + FD_REPLAY_SAMPLES * n, in->x, sizeof *x * (size_t)n);
    args.in[0] = x;
    args.n_pos *= FD_REPLAY_SAMPLES + 1;
    args.out = replay->sampled[0];
    fd_code code = fd_replay_run_f64(replay, args, err);
    memcpy(y, replay->sampled[0] + FD_REPLAY_SAMPLES * n_out, sizeof *y * (size_t)n_out);
    free(x);
    return code;
}

fd_code fd_replay_run_with_samples(fd_replay *replay, const fd_node *node, fd_op_args args, fd_error *err) {
    const fd_node_state *of[FD_MAX_INPUTS] = {NULL, NULL};
    bool any = false;
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        if (node->input[k] < 0) continue;
        of[k] = &replay->state[node->input[k]];
        any |= of[k]->samples[0] != NULL;
    }
    int64_t n = fd_replay_rows_given(replay, node);
    int64_t before = node->op == FD_OP_KV_WRITE ? n / replay->n_kv * replay->pos0 : 0;
    const fd_node_state *own = &replay->state[node->id]; /* a cache's earlier rows */
    if (!any && !(before && own->samples[0])) return fd_replay_run_f64(replay, args, err);
    replay->sampled[0] = calloc((size_t)(n ? n : 1), (FD_REPLAY_SAMPLES + 1) * sizeof *replay->sampled[0]);
    if (!replay->sampled[0]) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    for (int d = 1; d < FD_REPLAY_SAMPLES; d++) replay->sampled[d] = replay->sampled[0] + d * n;
    if (node->op == FD_OP_MATMUL) return run_joined(replay, args, of[0], n, err);
    FD_TRY(fd_replay_run_f64(replay, args, err));
    for (int d = 0; d < FD_REPLAY_SAMPLES; d++) {
        if (before)
            memcpy(replay->sampled[d], own->samples[d] ? own->samples[d] : own->x, sizeof(double) * (size_t)before);
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (of[k]) args.in[k] = of[k]->samples[d] ? of[k]->samples[d] : of[k]->x;
        args.out = replay->sampled[d];
        FD_TRY(fd_replay_run_f64(replay, args, err));
    }
    return FD_OK;
}

static double square(double x) {
    return x * x;
}

/* What was recorded of them, and the samples' spread: the element's own and, in quadrature, the row's root mean
 * square, for one element's may be small by chance. */
fd_code fd_replay_router_error(const fd_replay *replay, const fd_node *node, double **out, fd_error *err) {
    const fd_node_state *in = &replay->state[node->input[0]];
    int64_t n = fd_node_row_stride(&replay->o.graph->nodes[node->input[0]], replay->n_kv);
    double *e = malloc(sizeof *e * (size_t)(replay->n_pos * n));
    if (!e) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    memcpy(e, in->e, sizeof *e * (size_t)(replay->n_pos * n));
    for (int64_t row = 0; row < replay->n_pos * n && in->samples[0]; row += n) {
        double sum = 0;
        for (int64_t i = row; i < row + n; i++)
            for (int d = 0; d < FD_REPLAY_SAMPLES; d++) sum += square(in->samples[d][i] - in->x[i]);
        for (int64_t i = row; i < row + n; i++) {
            double own = 0;
            for (int d = 0; d < FD_REPLAY_SAMPLES; d++) own += square(in->samples[d][i] - in->x[i]);
            e[i] += sqrt((own + sum / (double)n) / FD_REPLAY_SAMPLES);
        }
    }
    *out = e;
    return FD_OK;
}

/* The step of a block of int8. */
static double step_of(const double *block, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(block[i]));
    return most / 127;
}

/* A sample goes λ times as far as roundings do, and so flips as many times more elements as they do, but none of them
 * farther: how often matters, not how far. An element whose samples spread by s flips with a probability of s/(λ·step)
 * at most; λ is 4 or more. */
fd_code fd_replay_flip_error(const fd_replay *replay, const fd_node *node, const fd_weight *weight, double **out,
                             fd_error *err) {
    enum { LEAST_LAMBDA = 4 };
    fd_dot_type type = weight ? fd_dot_type_of(replay->o.numerics, node, weight, 0)
                              : fd_dot_type_beside_cache(replay->o.numerics, node, fd_replay_kv_type(replay, node));
    const fd_node_state *in = node->input[0] < 0 ? NULL : &replay->state[node->input[0]];
    *out = NULL;
    if (type == FD_DOT_AS_IS || !in->samples[0]) return FD_OK;
    int64_t width = fd_node_row_stride(&replay->o.graph->nodes[node->input[0]], replay->n_kv);
    int64_t n = replay->n_pos * width, block = fd_dot_block(type, weight ? weight->n_col : width);
    double *e = malloc(sizeof *e * (size_t)n);
    if (!e) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    double of_value = type == FD_DOT_BF16 ? 0x1p-7 : 0x1p-10; /* where values are rounded by themselves */
#pragma omp parallel for if (n > MANY)
    for (int64_t first = 0; first < n; first += block) {
        int64_t end = first + block < n ? first + block : n;
        double of_block = block > 1 ? step_of(in->x + first, end - first) : 0;
        for (int64_t i = first; i < end; i++) {
            double step = block > 1 ? of_block : fabs(in->x[i]) * of_value, squares = 0;
            for (int d = 0; d < FD_REPLAY_SAMPLES; d++) squares += square(in->samples[d][i] - in->x[i]);
            double spread = sqrt(squares / FD_REPLAY_SAMPLES);
            double often = step > 0 ? fmin(1, spread / (LEAST_LAMBDA * step)) : 0;
            e[i] = sqrt(in->e[i] * in->e[i] + often * step * step);
        }
    }
    *out = e;
    return FD_OK;
}

/* A row of a cache in binary16 that was computed through unrecorded tensors: a value whose samples reach the middle between
 * two steps may lie on the other side in the engine. Samples go there by chance alone, and one element of K moves a whole
 * head's scores. So its bound is two steps: a sample that adds or takes off two is a step away or more, flipped or not. */
fd_code fd_replay_cache_flips(const fd_replay *replay, const fd_node *node, double **out, fd_error *err) {
    const fd_node_state *in = &replay->state[node->input[0]];
    *out = NULL;
    const uint32_t type = fd_replay_kv_type(replay, node);
    const bool repeats = type == FD_BF16 || (type == FD_F32 && fd_class_repeats_cache(replay->o.numerics));
    const int digits = type == FD_BF16 ? 7 : 10; /* behind the point */
    if (!fd_node_is_kv_cache(node) || !repeats || !in->samples[0]) return FD_OK;
    int64_t n = replay->n_pos * fd_node_row_stride(node, replay->n_kv);
    double *e = malloc(sizeof *e * (size_t)n);
    if (!e) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    for (int64_t i = 0; i < n; i++) {
        double step = fmax(ldexp(1, ilogb(in->x[i]) - digits), 0x1p-24), margin = 0;
        for (int d = 0; d < FD_REPLAY_SAMPLES; d++) margin = fmax(margin, fabs(in->samples[d][i] - in->x[i]));
        double steps = fabs(in->x[i]) / step, to_middle = fabs(steps - floor(steps) - 0.5) * step;
        e[i] = in->e[i] + (in->x[i] != 0 && isfinite(steps) && to_middle <= margin ? 2 * step : 0);
    }
    *out = e;
    return FD_OK;
}

/* Recorded rows as they are, others as replayed from the inputs' samples, each with a rounding of its own. */
/* What a cache keeps, and a choice of experts, is what became of moved values. */
void fd_replay_move_last_bits(const fd_replay *replay, const fd_node *node, double *row, int32_t pos, int64_t stride) {
    if (replay->o.draw > 0 && node->op != FD_OP_KV_WRITE && node->op != FD_OP_TOP_K)
        fd_samples_move_last_bits(row, stride, node->id, pos, replay->o.draw);
}

fd_code fd_replay_store_samples(fd_replay *replay, const fd_node *node, int64_t stride, int64_t before, fd_error *err) {
    fd_node_state *state = &replay->state[node->id];
    int64_t n = replay->n_pos * stride;
    for (int d = 0; d < FD_REPLAY_SAMPLES; d++) {
        bool fresh = state->samples[d] == NULL;
        double *p = realloc(state->samples[d], sizeof *p * (size_t)(before + n));
        if (!p) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
        state->samples[d] = p;
        if (fresh) memcpy(p, state->x, sizeof *p * (size_t)before);
        memcpy(p + before, state->x + before, sizeof *p * (size_t)n);
#pragma omp parallel for if (n > MANY)
        for (int64_t at = 0; at < n; at += stride) {
            if (replay->recorded[at / stride] || node->op == FD_OP_TOP_K) continue;
            if (replay->sampled[d])
                memcpy(p + before + at, replay->sampled[d] + before + at, sizeof *p * (size_t)stride);
            fd_samples_move_f64(p + before + at, replay->tau + at, stride, node->id, before + at, d);
        }
    }
    return FD_OK;
}

fd_code fd_replay_add_spread(fd_replay *replay, const fd_node *node, int64_t stride, fd_error *err) {
    int64_t before = node->op == FD_OP_KV_WRITE ? replay->pos0 * stride : 0, n = replay->n_pos * stride;
    if (!replay->sampled[0]) return FD_OK;
    double *squares = calloc((size_t)n, sizeof *squares);
    if (!squares) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    for (int d = 0; d < FD_REPLAY_SAMPLES; d++)
        fd_samples_add_squares(replay->sampled[d] + before, replay->y + before, n, squares);
    fd_samples_add_spread(squares, n, fd_samples_slice(node, stride), FD_REPLAY_SAMPLES, replay->tau);
    free(squares);
    return FD_OK;
}

/* `y`: of the range's first row. */
static bool is_within(const fd_replay *replay, const double *y, int64_t from, int64_t n) {
    for (int64_t i = from; i < from + n; i++)
        if (!(fd_bound_z(replay->candidate[i], y[i], replay->tau[i]) <= 1)) return false;
    return true;
}

/* The candidate may have chosen otherwise: here, or where an input comes from. */
static bool is_affected(const fd_replay *replay, const fd_node *node, int64_t stride, int32_t row) {
    for (int64_t i = row * stride; i < (row + 1) * stride; i++) {
        bool choice = node->op == FD_OP_TOP_K && !replay->recorded[row] && replay->tau[i] > 0;
        if (choice || replay->tau[i] >= FD_BOUND_UNKNOWN) return true;
    }
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        if (node->input[k] < 0) continue;
        bool cache = replay->o.graph->nodes[node->input[k]].op == FD_OP_KV_WRITE;
        if (replay->state[node->input[k]].unknown[row + (cache ? replay->pos0 : 0)]) return true;
    }
    return false;
}

/* Rounding may have changed a choice of experts that was not recorded. All samples make the replayed choice: a row after it
 * that is within its τ shows that the candidate made it, too. One that is not gets a τ that says nothing. */
fd_code fd_replay_spread_unknown(fd_replay *replay, const fd_node *node, int64_t stride, bool ran, fd_error *err) {
    fd_node_state *state = &replay->state[node->id];
    int64_t before = node->op == FD_OP_KV_WRITE ? replay->pos0 : 0;
    bool *unknown = realloc(state->unknown, sizeof *unknown * (size_t)(before + replay->n_pos));
    if (!unknown) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    state->unknown = unknown;
    memset(unknown + before, 0, sizeof *unknown * (size_t)replay->n_pos);
    for (int32_t r = 0; r < replay->n_pos; r++) {
        bool affected = ran && is_affected(replay, node, stride, r);
        bool says_nothing =
            affected && replay->recorded[r] && !is_within(replay, replay->y + before * stride, r * stride, stride);
        for (int64_t i = r * stride; i < (r + 1) * stride && says_nothing; i++) replay->tau[i] = FD_BOUND_UNKNOWN;
        unknown[before + r] = affected && !replay->recorded[r];
        if (before + r > 0 && node->op == FD_OP_KV_WRITE) unknown[before + r] |= unknown[before + r - 1];
    }
    return FD_OK;
}

#include "compare/replay/factors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/replay/cuda_kernels.h"

static bool can_be_asked(const fd_replay *replay, const fd_node *node) {
    const bool is_product = node->op == FD_OP_MATMUL || node->op == FD_OP_EXPERT_MATMUL;
    if (!replay->o.numerics->either || !is_product || replay->state[node->input[0]].missing) return false;
    for (int32_t r = 0; r < replay->n_pos; r++)
        if (!replay->recorded[r]) return false;
    return true;
}

bool fd_replay_is_nearer(const double *candidate, const double *rounded, const double *best, int64_t n) {
    int64_t n_rounded = 0, n_best = 0;
    for (int64_t i = 0; i < n; i++) {
        const double to_rounded = fabs(candidate[i] - rounded[i]), to_best = fabs(candidate[i] - best[i]);
        n_rounded += to_rounded < to_best;
        n_best += to_best < to_rounded;
    }
    return n_rounded > n_best;
}

fd_code fd_replay_run_as(fd_replay *replay, const fd_numerics_class *own, fd_op_args args, fd_error *err) {
    const fd_numerics_class *given = replay->o.numerics;
    replay->o.numerics = own;
    const fd_code code = fd_replay_run_f64(replay, args, err);
    replay->o.numerics = given;
    return code;
}

/* Rows that are nearer with factors of `own` take the place of those in replay->y. */
static fd_code try_factors(fd_replay *replay, const fd_numerics_class *own, fd_op_args args, int64_t stride,
                           fd_error *err) {
    const fd_code code = fd_replay_run_as(replay, own, args, err);
    const double *rounded = args.out;
    for (int32_t r = 0; r < replay->n_pos && code == FD_OK; r++) {
        const int64_t at = r * stride;
        if (replay->recorded[r] && fd_replay_is_nearer(replay->candidate + at, rounded + at, replay->y + at, stride))
            memcpy(replay->y + at, rounded + at, sizeof *rounded * (size_t)stride);
    }
    return code;
}

static void round_to_tf32(fd_numerics_class *own, bool cuts) {
    own->u_factor = 0x1p-11;
    own->tiny_in = 0x1p-126;
    own->replays_inputs = own->own_attention = own->all_products = true;
    own->in_truncates = cuts;
}

fd_code fd_replay_run_tf32(fd_replay *replay, fd_op_args args, bool cuts, fd_error *err) {
    fd_numerics_class own = *replay->o.numerics;
    own.cuda_kernels = false;
    round_to_tf32(&own, cuts);
    return fd_replay_run_as(replay, &own, args, err);
}

/* Rounded to TF32, and cut off where `cuts`. */
static fd_code try_tf32(fd_replay *replay, fd_numerics_class *own, bool cuts, fd_op_args args, int64_t stride,
                        fd_error *err) {
    round_to_tf32(own, false);
    FD_TRY(try_factors(replay, own, args, stride, err));
    own->in_truncates = cuts;
    return cuts ? try_factors(replay, own, args, stride, err) : FD_OK;
}

fd_code fd_replay_choose_factors(fd_replay *replay, const fd_node *node, fd_op_args args,
                                 const fd_numerics_class **class_, fd_error *err) {
    const fd_numerics_class *given = replay->o.numerics;
    const int64_t stride = fd_node_row_stride(node, replay->n_kv), n = replay->n_pos * stride;
    *class_ = NULL;
    if (!can_be_asked(replay, node)) return FD_OK;
    double *rounded = malloc(sizeof *rounded * (size_t)(n ? n : 1));
    if (!rounded) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    fd_numerics_class *own = &replay->of_product;
    *own = *given;
    own->either = own->in_truncates = false;
    own->u_in = 0;
    args.out = rounded;
    fd_code code = try_tf32(replay, own, given->in_truncates, args, stride, err);
    own->u_factor = 0; /* what is rounded is known */
    own->replays_inputs = own->in_truncates = false;
    free(rounded);
    if (code == FD_OK) *class_ = own;
    return code;
}

static bool is_as_ggml(const fd_numerics_class *c) {
    return c->replays_inputs && !(c->u_factor > 0) && !c->plain_products && !c->own_block;
}

/* Sums in binary32 of a few thousand products: a hundredth of what the shortest sums in binary16 leave. */
#define LIKE_BINARY32 0x1p-19

bool fd_replay_is_near(const double *candidate, const double *y, int64_t n) {
    double errors = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isinf(y[i])) continue; /* a score that is masked later */
        errors += (candidate[i] - y[i]) * (candidate[i] - y[i]);
        squares += y[i] * y[i];
    }
    return errors <= LIKE_BINARY32 * LIKE_BINARY32 * squares;
}

static bool all_are_near(const fd_replay *replay, int64_t stride) {
    bool all = true;
    for (int32_t r = 0; r < replay->n_pos && all; r++)
        all = !replay->recorded[r] || fd_replay_is_near(replay->candidate + r * stride, replay->y + r * stride, stride);
    return all;
}

fd_code fd_replay_choose_kernel(fd_replay *replay, const fd_node *node, fd_op_args args, fd_error *err) {
    const int64_t stride = fd_node_row_stride(node, replay->n_kv), n = replay->n_pos * stride;
    const fd_weight *weight = args.weight[0];
    fd_numerics_class own = *replay->o.numerics;
    const bool scores = node->op == FD_OP_ATTN_SCORES && fd_cuda_computes(replay, node);
    if (!scores && !fd_dot_is_product(node->op)) return FD_OK;
    if (!scores && fd_dot_is_of_integers(weight) && !own.cuda_kernels) return FD_OK;
    if (!is_as_ggml(&own) || all_are_near(replay, stride)) return FD_OK;
    if (scores) return fd_cuda_try_others(replay, node, &args, err);
    if (weight->dtype != FD_F32) return fd_cuda_try_others(replay, node, &args, err);
    double *y = malloc(sizeof *y * (size_t)(n ? n : 1));
    if (!y) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    args.out = y;
    own.cuda_kernels = false; /* they are tried one by one */
    fd_code code = replay->o.numerics->cuda_kernels ? try_factors(replay, &own, args, stride, err) : FD_OK;
    if (code == FD_OK) code = try_tf32(replay, &own, true, args, stride, err);
    free(y);
    return code;
}

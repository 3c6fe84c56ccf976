#include "compare/replay/factors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool can_be_asked(const fd_replay *replay, const fd_node *node) {
    if (!replay->o.numerics->either || node->op != FD_OP_MATMUL || replay->state[node->input[0]].missing) return false;
    for (int32_t r = 0; r < replay->n_pos; r++)
        if (!replay->recorded[r]) return false;
    return true;
}

/* Most elements, because those that a bug damaged are off by much in both. */
static bool is_nearer(const double *candidate, const double *rounded, const double *plain, int64_t n) {
    int64_t n_rounded = 0, n_plain = 0;
    for (int64_t i = 0; i < n; i++) {
        const double to_rounded = fabs(candidate[i] - rounded[i]), to_plain = fabs(candidate[i] - plain[i]);
        n_rounded += to_rounded < to_plain;
        n_plain += to_plain < to_rounded;
    }
    return n_rounded > n_plain;
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
    own->either = false;
    own->u_in = 0;
    own->u_factor = given->u_in;
    own->replays_inputs = own->own_attention = own->all_products = true;
    replay->o.numerics = own;
    args.out = rounded;
    fd_code code = fd_replay_run_f64(replay, args, err);
    replay->o.numerics = given;
    for (int64_t at = 0; at < n && code == FD_OK; at += stride)
        if (is_nearer(replay->candidate + at, rounded + at, replay->y + at, stride))
            memcpy(replay->y + at, rounded + at, sizeof *rounded * (size_t)stride);
    own->u_factor = 0; /* what is rounded is known */
    own->replays_inputs = false;
    free(rounded);
    if (code == FD_OK) *class_ = own;
    return code;
}

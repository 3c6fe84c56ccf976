/* Fused attention keeps its scores and weights to itself; the ones that such an engine records, a second kernel computed.
 * The two differ by the rounding of both, e^s by as much as s is off, which is far more than the weighted sum rounds. So a row of
 * ATTN_MIX that the recorded weights do not explain is judged once more, by weights that may be as far from the recorded ones as the
 * class's roundings of scores and of softmax make them. Rows that are beyond even then keep their narrow bound: theirs is a bug, and
 * its size is seen.
 *
 * In classes that round factors or results to 16 bits the bounds have that room already, and e_p would be a tenth of p. */
#include <stdlib.h>
#include <string.h>

#include "compare/replay/internal.h"

static const double BINARY32 = 0x1p-23; /* a roundoff up to here leaves weights that a fused kernel may be told by */

static bool class_recomputes(const fd_numerics_class *c) {
    return !c->exact && c->u_op <= BINARY32 && c->u_out <= BINARY32 && c->u_acc <= BINARY32 && c->u_in <= BINARY32 &&
           c->u_attn <= BINARY32;
}

static bool is_inside(const fd_node *node) {
    return node->op == FD_OP_ATTN_SCORES || node->op == FD_OP_ATTN_ALIBI || node->op == FD_OP_ATTN_SOFTMAX;
}

static bool is_recomputed(const fd_replay *replay, const fd_node *node) {
    return is_inside(node) && class_recomputes(replay->o.numerics);
}

/* Rows of one head whose elements are within `wide`, and not within τ, get that. */
static void widen(fd_replay *replay, const fd_node *node, int64_t stride, const double *wide) {
    const int64_t n = node->shape[1];
    for (int64_t at = 0; at < replay->n_pos * stride; at += n) {
        bool within = true, by_wide = true;
        for (int64_t i = at; i < at + n; i++) {
            within &= fd_bound_z(replay->candidate[i], replay->y[i], replay->tau[i]) <= 1;
            by_wide &= fd_bound_z(replay->candidate[i], replay->y[i], wide[i]) <= 1;
        }
        if (replay->o.numerics->typical || (!within && by_wide))
            memcpy(replay->tau + at, wide + at, sizeof *wide * (size_t)n);
    }
}

fd_code fd_replay_recompute(fd_replay *replay, const fd_node *node, const fd_bound_args *bound, fd_error *err) {
    const double *before = node->input[0] >= 0 ? replay->state[node->input[0]].again : NULL;
    const int64_t stride = fd_node_row_stride(node, replay->n_kv), n = replay->n_pos * stride;
    const bool mixes = node->op == FD_OP_ATTN_MIX && before;
    if (!mixes && !is_recomputed(replay, node)) return FD_OK;
    double *tau = malloc(sizeof *tau * (size_t)n);
    if (!tau) return fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    memcpy(tau, replay->tau, sizeof *tau * (size_t)n);
    fd_bound_args again = *bound;
    if (before) again.in_error[0] = before;
    fd_code code = before ? fd_bound(&again, tau, err) : FD_OK;
    if (code == FD_OK && mixes) widen(replay, node, stride, tau);
    if (code != FD_OK || mixes) {
        free(tau);
        return code;
    }
    free(replay->state[node->id].again);
    replay->state[node->id].again = tau;
    return FD_OK;
}

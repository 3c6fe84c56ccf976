/* Flash attention's weighted sum of V where weights are rounded. */
#include <math.h>
#include <stdlib.h>

#include "compare/replay/internal.h"

bool fd_replay_is_flash_mix(const fd_replay *replay, const fd_node *node) {
    const fd_numerics_class *c = replay->o.numerics;
    return node->op == FD_OP_ATTN_MIX && c->replays_inputs && c->u_mix > 0 && c->cuda_kernels;
}

/* e^(score − largest) is rounded, and comes to the sum, of which a sink may be most, in the end. So each head's weights are rounded where
 * the largest is near 1. */
fd_code fd_replay_run_flash_mix(fd_replay *replay, fd_op_args args, fd_error *err) {
    const fd_node *node = args.node;
    const int64_t n_head = node->shape[0], dim = node->shape[1], n = args.n_pos * n_head;
    double *p = malloc(sizeof *p * (size_t)(n * args.n_kv)), *y = args.out;
    int *up = malloc(sizeof *up * (size_t)n);
    fd_code code = p && up ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", node->name);
    for (int64_t i = 0; i < n && code == FD_OK; i++) {
        const double *from = (const double *)args.in[0] + i * args.n_kv;
        double most = 0;
        for (int64_t t = 0; t < args.n_kv; t++) most = fmax(most, from[t]);
        up[i] = most > 0 && isfinite(most) ? -ilogb(most) : 0;
        for (int64_t t = 0; t < args.n_kv; t++) p[i * args.n_kv + t] = ldexp(from[t], up[i]);
    }
    const fd_op_args as_they_are = args;
    args.in[0] = p;
    if (code == FD_OK) code = fd_replay_run_as_given(replay, args, err);
    for (int64_t i = 0; i < n * dim && code == FD_OK; i++) {
        const int64_t r = i / (n_head * dim);
        y[i] = ldexp(y[i], -up[i / dim]);
        if (!fd_replay_is_own_row(replay, &as_they_are, r)) continue;
        double *room = replay->room + r % replay->n_pos * n_head * dim + i % (n_head * dim);
        *room = ldexp(*room, -up[i / dim]);
    }
    free(p);
    free(up);
    return code;
}

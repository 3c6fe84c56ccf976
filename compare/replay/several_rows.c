#include "compare/replay/several_rows.h"

#include <stdlib.h>
#include <string.h>

#include "compare/replay/factors.h"

static bool is_attention(const fd_node *node) {
    return node->op == FD_OP_ATTN_SCORES || node->op == FD_OP_ATTN_MIX;
}

bool fd_several_rows_computes(const fd_replay *replay, const fd_node *node) {
    const fd_numerics_class *c = replay->o.numerics;
    return c->several_rows && (fd_dot_is_product(node->op) || (is_attention(node) && !c->own_attention));
}

/* Rows of samples are those of their positions. */
static bool is_of_several(const fd_replay *replay, int64_t r) {
    return fd_trace_rows_of_call(replay->o.trace, replay->pos0 + (int32_t)(r % replay->n_pos)) > 1;
}

fd_code fd_several_rows_run(fd_replay *replay, fd_op_args args, fd_error *err) {
    const int64_t stride = fd_node_row_stride(args.node, replay->n_kv);
    fd_numerics_class rounded = *replay->o.numerics, plain = rounded;
    int64_t n_single = 0;
    rounded.several_rows = plain.several_rows = false;
    plain.replays_inputs = false;
    plain.u_factor = 0;
    for (int32_t r = 0; r < args.n_pos; r++) n_single += !is_of_several(replay, r);
    if (n_single > 0) FD_TRY(fd_replay_run_as(replay, &plain, args, err));
    if (n_single == args.n_pos) return FD_OK;
    fd_op_args several = args;
    double *y = NULL, *cache = NULL;
    fd_code code = FD_OK;
    if (is_attention(args.node)) { /* K or V is a factor as well */
        const fd_node *kept = &replay->o.graph->nodes[args.node->input[1]];
        const int64_t n = replay->n_kv * fd_node_row_stride(kept, replay->n_kv);
        code = fd_replay_round_copy(FD_DOT_TF32, args.in[1], n, &cache, err);
        several.in[1] = cache;
    }
    if (code == FD_OK && n_single > 0) {
        several.out = y = malloc(sizeof *y * (size_t)(args.n_pos * stride));
        if (!y) code = fd_fail(err, FD_ERR_MEMORY, "%s: replay: out of memory", args.node->name);
    }
    if (code == FD_OK) code = fd_replay_run_as(replay, &rounded, several, err);
    for (int32_t r = 0; r < args.n_pos && code == FD_OK && y; r++)
        if (is_of_several(replay, r))
            memcpy((double *)args.out + r * stride, y + r * stride, sizeof *y * (size_t)stride);
    free(cache);
    free(y);
    return code;
}

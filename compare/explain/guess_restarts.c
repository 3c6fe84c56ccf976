/* Positions that begin again within a run: of sequences that are packed into one row, of padding, of a chunk. Where they do is read off the
 * rows, the first that departs after the other. */
#include <math.h>

#include "compare/explain/guesses.h"

enum { MOST_RESTARTS = 16, LAST_BIT = 63 };

/* The first judged row that a hypothesis does not give; *pos -1: none. */
static fd_code first_other_row(fd_trial *t, const fd_hypothesis *h, int32_t *pos, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    const int64_t width = fd_node_row_stride(r->args.node, r->args.n_kv);
    fd_variant v;
    *pos = -1;
    FD_TRY(fd_evaluate(t->all.bench, h, r->args.node->id, true, &v, err));
    const int64_t n = v.state == FD_VARIANT_COMPUTED ? r->args.n_pos * width : 0;
    for (int64_t i = r->n_unjudged * width; i < n && *pos < 0; i++)
        if (!(fabs((double)r->output[i] - (double)v.rows[i]) <= (v.tau ? v.tau[i] : 0)))
            *pos = r->args.pos0 + (int32_t)(i / width);
    fd_variant_free(&v);
    return FD_OK;
}

/* Does every row begin anew from the first of these on, two and more to the last? No packing is like that, and behind padding a sequence follows: RoPE
 * does not turn these rows, which has a name of its own. */
static bool are_all_rows(uint64_t starts, int32_t last) {
    const uint64_t from_first = starts ? starts / (starts & -starts) : 0;
    return from_first > 1 && (from_first & (from_first + 1)) == 0 && last <= LAST_BIT && (starts >> last & 1);
}

fd_code fd_guess_restarts(fd_trial *t, fd_hypothesis h, fd_error *err) {
    const fd_op_args *args = &t->all.request->args;
    h.which = FD_POSITION_RESTARTS;
    h.n = h.first = h.end = 0;
    for (int32_t k = 0; k < MOST_RESTARTS; k++) {
        int32_t pos;
        FD_TRY(first_other_row(t, &h, &pos, err));
        if (pos < 0) break;
        if (pos > LAST_BIT || (h.keys >> pos & 1)) return FD_OK;
        h.keys |= UINT64_C(1) << pos;
    }
    return h.keys && !are_all_rows(h.keys, args->pos0 + args->n_pos - 1) ? fd_trial_try(t, &h, err) : FD_OK;
}

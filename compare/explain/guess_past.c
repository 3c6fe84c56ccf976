/* Rows that earlier steps left in the cache are read from another one: the next layer's, the one's before, or K and V are exchanged. */
#include "compare/explain/guesses.h"

static fd_code try_past(fd_trial *t, int32_t node, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_CACHE, .node = node, .layer = FD_ANY_LAYER, .which = FD_CACHE_PAST};
    for (h.other = -1; h.other <= 1 && !fd_trial_fits(t); h.other++) FD_TRY(fd_trial_try(t, &h, err));
    return FD_OK;
}

fd_code fd_guess_past(fd_trial *t, fd_error *err) {
    const fd_op_args *args = &t->all.request->args;
    int32_t n = 0;
    if (args->pos0 + args->n_pos <= args->first_batch) return FD_OK; /* in the first step there is none */
    FD_TRY(try_past(t, -1, err));
    for (int32_t i = t->n_span - 1; i >= 0 && n < 2 && !fd_trial_fits(t); i--) {
        const fd_node *reader = &args->graph->nodes[t->span[i]];
        if (!fd_reads_kv_cache(reader)) continue;
        n++;
        FD_TRY(try_past(t, reader->id, err));
    }
    return FD_OK;
}

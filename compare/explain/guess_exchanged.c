/* Two rows of the cache stand in each other's place when attention reads them: of K, of V, or of both. */
#include "compare/explain/guesses.h"

/* Of more rows neighbours alone: pairs are too many. */
enum { MOST_KEYS = 32 };

/* `node` -1: of K and V alike. */
static fd_code try_pairs(fd_trial *t, int32_t node, fd_error *err) {
    const int32_t n_kv = t->all.request->args.n_kv, furthest = n_kv <= MOST_KEYS ? n_kv - 1 : 1;
    fd_hypothesis h = {.guess = FD_GUESS_CACHE, .node = node, .layer = FD_ANY_LAYER, .which = FD_CACHE_EXCHANGED};
    for (h.n = 1; h.n <= furthest; h.n++)
        for (h.first = 0; h.first + h.n < n_kv && !fd_trial_fits(t); h.first++) {
            h.end = h.first + 1;
            FD_TRY(fd_trial_try(t, &h, err));
        }
    return FD_OK;
}

fd_code fd_guess_exchanged_rows(fd_trial *t, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    int32_t n = 0;
    for (int32_t i = t->n_span - 1; i >= 0 && !fd_trial_fits(t); i--) {
        const fd_node *reader = &nodes[t->span[i]];
        if (!fd_reads_kv_cache(reader)) continue;
        if (++n == 2 && !fd_trial_many_layers(t)) FD_TRY(try_pairs(t, -1, err));
        if (!fd_trial_fits(t)) FD_TRY(try_pairs(t, reader->id, err));
    }
    return FD_OK;
}

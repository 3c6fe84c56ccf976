/* Between weights.c (what differs), match.c (whose rows they are) and fault.c (which fault). */
#ifndef FD_COMPARE_WEIGHTS_INTERNAL_H
#define FD_COMPARE_WEIGHTS_INTERNAL_H

#include "compare/weights/weights.h"
#include "dumpers/store/weights.h"

/* Other readers of one weight: rope_freqs has two in every layer. */
enum { FD_MAX_OTHER_READERS = 1024 };

typedef struct fd_weight_difference {
    int32_t node, slot;                          /* the first reader in the model's graph; node -1: no model */
    int32_t other_readers[FD_MAX_OTHER_READERS]; /* [n_other_reader] nodes that read the same bytes */
    int32_t n_other_reader;
    const fd_weight_rows *loaded; /* in the trace's table; borrowed */
    fd_weight_rows expected;      /* owned */
} fd_weight_difference;

typedef struct fd_weight_differences {
    fd_weight_difference *items; /* [n] in order of execution; owned */
    int32_t n;
} fd_weight_differences;

/* ---- match.c ---- */

/* The same shape, as far as both recorded it, and every hash. */
bool fd_weight_rows_equal(const fd_weight_rows *a, const fd_weight_rows *b);

/* Whose rows it has: another weight's of the same shape, its own at a constant distance or in another order. */
fd_code fd_weights_match_model(const fd_graph *graph, const fd_weight_difference *d, fd_verdict_weights *verdict,
                               fd_error *err);
void fd_weights_match_table(const fd_weight_table *table, const fd_weight_difference *d, fd_verdict_weights *verdict);

/* ---- fault.c ---- */

/* Finds the fault, and builds the graph that reads its bytes. explained [list->n]: the fault has the hashes. */
fd_code fd_weights_find_fault(const fd_graph *graph, const fd_weight_differences *list, fd_verdict_weights *verdict,
                              fd_loaded_weights *loaded, bool *explained, fd_error *err);

#endif

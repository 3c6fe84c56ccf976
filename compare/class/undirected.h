/* Errors that roundings leave which nobody listed (sums of rounded parts, factors or a cache of 8 bits): in every row and every part of it
 * alike, and in no direction. A bug is somewhere, or along something. One measure for products (mixed.h, own_products.h) and for what reads
 * a cache (own_cache.h); how large such errors may be is theirs to say. */
#ifndef FD_COMPARE_CLASS_UNDIRECTED_H
#define FD_COMPARE_CLASS_UNDIRECTED_H

#include "compare/diagnose/diagnose.h"
#include "compare/explain/trial_rows.h"

typedef struct fd_undirected {
    double error;     /* √Σ squares, relative to the result; NaN where something is not finite */
    double along;     /* of the errors' size, along the result */
    double least_row; /* a row's relative error over that of all */
    bool parts_alike; /* each eighth of the elements has its part of the error */
    int64_t n;        /* elements that `along` was taken of */
} fd_undirected;

/* What the candidate leaves of the op as it should be, which rows->plain has computed. */
fd_undirected fd_weigh_undirected(const fd_trial_rows *rows);

/* The same of the rows that ask->finding is about; all 0, and so in a part, where the op cannot be computed. */
fd_code fd_ask_undirected(const fd_diagnose_options *ask, fd_undirected *out, fd_error *err);

/* No direction, no part. */
bool fd_is_undirected(const fd_undirected *errors);

/* Nor a row: not asked of what reads a cache, where a row goes with the rows that it reads. */
bool fd_is_undirected_in_rows(const fd_undirected *errors);

/* What departs at each node: error[n_node] is left alone where nothing does. */
fd_code fd_ask_all_undirected(const fd_diagnose_options *ask, const fd_attribution *of, double *error, fd_error *err);

/* Roundings leave errors of one size in all layers. `error`: of each node, relative; 0: it was not seen, or does not depart. Is node i's many
 * times any other's of its kind? */
bool fd_is_apart(const fd_graph *graph, const double *error, int32_t i);

#endif

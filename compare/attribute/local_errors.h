/* What a run's ops leave, each on its own recorded inputs, beside what an emulated engine of its class leaves on its own: bounds have room
 * for much more, but roundings of one rule leave one size of errors. So a bug that is no larger than
 * rounding shows where it is made, before all other layers' roundings are added to it. */
#ifndef FD_COMPARE_ATTRIBUTE_LOCAL_ERRORS_H
#define FD_COMPARE_ATTRIBUTE_LOCAL_ERRORS_H

#include "compare/attribute/attribution.h"

typedef struct fd_local_excess {
    int32_t node;     /* the first, of those with errors that are too large; -1: none has */
    int32_t first, n; /* rows from that position on, so many */
    double here,
        there; /* Σ of squares of their errors over that of the values: the candidate's, the emulated engine's */
    int32_t unrounded; /* the first that reads what it reads before that is rounded (unrounded.h); -1: none */
} fd_local_excess;

/* `candidate`: how its trace is judged, in which class. `emulated`: a trace of the same tokens and steps, whose tensors that the candidate
 * lacks are taken for not recorded. */
fd_code fd_find_local_excess(const fd_attribution_options *candidate, const fd_trace *emulated, fd_local_excess *out,
                             fd_error *err);

#endif

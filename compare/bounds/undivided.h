/* Attention's weights that a fused kernel rounded before it divided them: it multiplies V with e^(s - largest so far) in 16 bits, and divides
 * what comes out by their sum. So weights of one tile have the type's digits times a number that they share, e^0 for the largest. */
#ifndef FD_COMPARE_BOUNDS_UNDIVIDED_H
#define FD_COMPARE_BOUNDS_UNDIVIDED_H

#include <stdbool.h>
#include <stdint.h>

/* Do weights of a position show that? rows [n_head, n_kv], of which the first n keys are seen; u: the type's unit roundoff. */
bool fd_were_rounded_undivided(const double *rows, int64_t n_head, int64_t n_kv, int64_t n, double u);

#endif

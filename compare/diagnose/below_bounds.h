/* Bugs below the bounds, found by the direction of what the candidate leaves (projection.h): in a class that rounds tensors or
 * factors to 16 bits, which leaves as much as it rounds; and in binary32, through unrecorded ops, where a wrong eps is no
 * larger than the bound but far larger than what a sound engine leaves.
 *
 * Bugs that round as the class does are not asked about. In binary32 the bug has to take away three quarters of what is
 * left, and have nearly its own size: the computed direction has roundings in common with the residual, and these must
 * not pass for a bug. */
#ifndef FD_COMPARE_DIAGNOSE_BELOW_BOUNDS_H
#define FD_COMPARE_DIAGNOSE_BELOW_BOUNDS_H

#include "compare/diagnose/diagnose.h"

/* Under noise: the bug whose slope is shown, in all nodes of a kind or in one; out->named false: there is none. The nodes
 * where it shows become findings of `of`. Asks nothing of exact classes, and of those that
 * repeat roundings to steps only where most rows have more left than binary32 leaves, or sums of V are in 16 bits.
 * options->finding is not read. */
fd_code fd_find_below_bounds(const fd_diagnose_options *options, fd_attribution *of, fd_explanation *out,
                             fd_causes *causes, fd_error *err);

/* A finding in binary32, reached through unrecorded ops, that nothing explains by its bounds: *out is replaced where a bug's slope
 * is shown, else left as it is. */
fd_code fd_explain_by_slope(const fd_diagnose_options *options, fd_explanation *out, fd_error *err);

#endif

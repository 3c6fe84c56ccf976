/* Another class than the one that was inferred: could its engine have left what departs? */
#ifndef FD_COMPARE_REPLAY_RIVAL_H
#define FD_COMPARE_REPLAY_RIVAL_H

#include "compare/replay/attribution.h"

/* Errors are a class's if they are within its bounds and no larger than its roundings leave as a rule (fd_numerics_class_typical); rows of
 * which these leave as much as the row is large say nothing. */

/* Root mean squares of a row: beyond any chance of roundings that leave `typical` as a rule. Of sound runs a half was the most,
 * through whole layers, and a tenth of single norms, because not everything on the way is rounded by as much as could be. */
static inline bool fd_error_is_too_large(double error, double typical) {
    return !(error <= 3 * typical);
}

/* Nothing of the trace departs from `rival`, and the errors at `finding` are as large as it leaves; numerics, ref, on_row and progress of
 * the options are ignored. */
fd_code fd_rival_explains(const fd_attribution_options *options, const fd_node_finding *finding,
                          const fd_numerics_class *rival, bool *yes, fd_error *err);

#endif

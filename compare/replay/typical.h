/* Bounds are six standard deviations of roundings or more, and through unrecorded tensors many times that: a bug in every layer may
 * stay within. But a class's roundings leave errors of one size (fd_numerics_class_typical), in every row alike. Of sound runs a
 * tensor has half of it; rows that have three times as much, and no less than two of them, make it a suspect. */
#ifndef FD_COMPARE_REPLAY_TYPICAL_H
#define FD_COMPARE_REPLAY_TYPICAL_H

#include "compare/replay/attribution.h"

/* Over what the class leaves as a rule; NaN is beyond. */
#define FD_MOST_ERROR 3.0f

/* Adds to of->suspect, for a class that does not repeat its roundings (fd_residuals_judge is for the others): where something was found,
 * among tensors of its kind, all rows; else among those of a sample. The options are those that `of` came from. */
fd_code fd_suspect_large_errors(const fd_attribution_options *options, fd_attribution *of, fd_error *err);

/* At `node`, for `numerics`. */
fd_code fd_has_large_errors(const fd_attribution_options *options, const fd_numerics_class *numerics, int32_t node,
                            bool *yes, fd_error *err);

#endif

/* Bounds are six standard deviations of roundings or more, and through unrecorded tensors many times that: a bug in every layer may
 * stay within. But a class's roundings leave errors of one size (fd_numerics_class_typical), in every row alike. In 75 sound runs of
 * every class a quarter of the rows had up to 1.6 times that size where one op was judged, and up to 0.8 times through a layer or
 * more, on whose way not everything is rounded by as much as could be. */
#ifndef FD_COMPARE_ATTRIBUTE_TYPICAL_H
#define FD_COMPARE_ATTRIBUTE_TYPICAL_H

#include "compare/attribute/attribution.h"

/* So many times that size no rounding is. */
#define FD_MOST_ERROR           5.0f
#define FD_MOST_ERROR_LONG_SPAN 2.0f

/* Tensors on a way that is long, fewer than a layer has. */
enum { FD_LONG_SPAN = 8 };

/* Adds tensors with two such rows to of->suspect, for a class that does not repeat its roundings (fd_residuals_judge is for the others):
 * where something was found, among tensors of its kind; else in a sample. The options are those that `of` came from. */
fd_code fd_suspect_large_errors(const fd_attribution_options *options, fd_attribution *of, fd_error *err);

/* At `node`, for `numerics`. */
fd_code fd_has_large_errors(const fd_attribution_options *options, const fd_numerics_class *numerics, int32_t node,
                            bool *yes, fd_error *err);

#endif

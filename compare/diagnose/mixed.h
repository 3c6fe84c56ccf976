/* A class of the engine's own: all its products, its cache or its embedding in 16 bits, and the rest as the class that was
 * inferred. That is a choice, not a bug, as far as anybody can tell who was not told the class. */
#ifndef FD_COMPARE_DIAGNOSE_MIXED_H
#define FD_COMPARE_DIAGNOSE_MIXED_H

#include "compare/diagnose/diagnose.h"

/* *type: what the results of the first finding's op are rounded to (FD_F16, FD_BF16), in every layer where that tensor was
 * judged, while nothing but such rounding departs; 0: it is not so. */
fd_code fd_find_mixed_class(const fd_diagnose_options *ask, const fd_attribution *of, int32_t *type, fd_error *err);

#endif

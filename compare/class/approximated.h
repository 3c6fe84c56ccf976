/* Kernels that approximate: a polynomial for e^x, the bit trick for 1/sqrt(x) with two Newton steps, angles turned on from position to
 * position. Their errors are small, in every layer, and no class has them: an engine may be meant so. */
#ifndef FD_COMPARE_CLASS_APPROXIMATED_H
#define FD_COMPARE_CLASS_APPROXIMATED_H

#include "compare/diagnose/diagnose.h"

/* Does everything that departs hold such a function (through unrecorded tensors, on the way), in all layers or by little? Only then the
 * explanation is worth asking for. */
bool fd_may_be_approximated(const fd_graph *graph, const fd_attribution *of);

/* Are the errors of all that departs as small as such functions leave them? `e`: of the first finding; a bug that gives its values
 * is no approximation. `to`: which, in words. */
fd_code fd_is_approximated(const fd_diagnose_options *ask, const fd_attribution *of, const fd_explanation *e, char *to,
                           size_t size, bool *yes, fd_error *err);

#endif

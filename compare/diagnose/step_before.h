/* A name is proved on the rows of one step, or on some of them. Does it leave the row before, which is right, as it is? */
#ifndef FD_COMPARE_DIAGNOSE_STEP_BEFORE_H
#define FD_COMPARE_DIAGNOSE_STEP_BEFORE_H

#include "compare/diagnose/diagnose.h"

/* A name found in a decode step through unrecorded tensors, the first that departs, has to leave the step before, which is right, as it
 * is; else it begins there, where what an op does may change with the length, or the node is diagnosed without it, and *e is what comes out. One that was found in the last rows of a
 * step alone says from which position on it holds, where the row before has not got it. */
fd_code fd_refute_by_step_before(const fd_diagnose_options *ask, const float *z, fd_explanation *e, fd_error *err);

#endif

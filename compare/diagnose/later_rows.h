/* What the rest of a step says of a name that its first rows gave. */
#ifndef FD_COMPARE_DIAGNOSE_LATER_ROWS_H
#define FD_COMPARE_DIAGNOSE_LATER_ROWS_H

#include "compare/diagnose/diagnose.h"

/* Is a row of the finding's step neither as the op should have it nor as the hypothesis has it? Of rows with another bug, or of
 * which the first ones say too little, the name is not true. */
fd_code fd_refuted_by_rows(const fd_diagnose_options *options, const fd_hypothesis *h, bool *yes, fd_error *err);

#endif

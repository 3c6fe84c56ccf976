/* Explanations of which one gives the values of the other in every row of a step: what the table names may be its twin, which
 * no row of the table is. Later steps tell them apart. */
#ifndef FD_COMPARE_DIAGNOSE_TWINS_H
#define FD_COMPARE_DIAGNOSE_TWINS_H

#include "compare/diagnose/diagnose.h"

/* Where `e` names a bug through unrecorded tensors, and its twin fits as well: that one stands in e->remaining beside it. */
fd_code fd_add_twin(const fd_diagnose_options *ask, fd_explanation *e, fd_error *err);

#endif

/* Explanations of which one gives the values of the other in every row of a step, or in all: what is named may be its twin, which no row
 * of the table is. Later steps tell them apart, or K's recorded rows. */
#ifndef FD_COMPARE_DIAGNOSE_TWINS_H
#define FD_COMPARE_DIAGNOSE_TWINS_H

#include "compare/diagnose/diagnose.h"

/* Where `e` names a bug through unrecorded tensors, and twins of it fit as well: these stand in e->remaining beside it. */
fd_code fd_add_twins(const fd_diagnose_options *ask, fd_explanation *e, fd_error *err);

#endif

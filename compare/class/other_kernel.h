/* Behind a product that was not recorded: was it another kernel's? ggml's CUDA backend chooses one by the number of rows, and what a class
 * repeats is one of them. Where the product was recorded, replay tries them (replay/factors.h). */
#ifndef FD_COMPARE_CLASS_OTHER_KERNEL_H
#define FD_COMPARE_CLASS_OTHER_KERNEL_H

#include "compare/attribute/attribution.h"
#include "compare/diagnose/diagnose.h"

/* *error: the largest of what all that departs leaves, relative to it, in no direction, with such products before it or being attention's
 * own; 0: something is otherwise, or the class repeats no float factors. */
fd_code fd_find_other_kernel(const fd_diagnose_options *ask, const fd_attribution *of, double *error, fd_error *err);

#endif

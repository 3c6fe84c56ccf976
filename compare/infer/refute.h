/* Classes that have room for a trace, refuted by what another class says of it. */
#ifndef FD_COMPARE_INFER_REFUTE_H
#define FD_COMPARE_INFER_REFUTE_H

#include "compare/infer/try_classes.h"

/* Sets `refuted`, with `by_tighter_alone`, and a refuted case's n_needed and n_rounded. */
void fd_refute_by_others(const fd_evidence *evidence, fd_class_cases *cases);

/* All that `wide`, a GPU's, is needed for are the weighted sums of V: every product, and the scores, are what a tight class says. Kernels that
 * sum V in binary16 exist, and stricter classes have room for them; a bug in that sum looks like this. */
bool fd_case_is_for_mix_alone(const fd_evidence *evidence, const fd_class_cases *cases, int32_t wide);

#endif

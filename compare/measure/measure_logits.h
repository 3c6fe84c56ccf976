/* One position's logits of both sides. */
#ifndef FD_COMPARE_MEASURE_MEASURE_LOGITS_H
#define FD_COMPARE_MEASURE_MEASURE_LOGITS_H

#include "compare/measure/measures.h"

/* reference and candidate [n]. With a NaN on either side `known` stays false. */
void fd_measure_logits_row(const double *reference, const double *candidate, int64_t n, fd_logits_measure *out);

#endif

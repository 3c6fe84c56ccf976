/* What dumpers/observe/health.h says of a row of logits, in plain C: the best ones, their share and their range. */
#ifndef FD_TESTS_GPU_BEST_LOGITS_H
#define FD_TESTS_GPU_BEST_LOGITS_H

#include <stdint.h>

#include "numerics/summary.h"

void best_logits(const float *x, int32_t n, fd_top_logits *out);

#endif

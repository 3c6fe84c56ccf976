/* Sums that were kept in binary16 and divided at the end, as ggml's flash attention keeps e^(s - max)·v: every element of a head is a number of 11
 * bits times one that all of them share. No other way to sum leaves that; those of bfloat16 have 8 bits. */
#ifndef FD_COMPARE_INFER_F16_SUMS_H
#define FD_COMPARE_INFER_F16_SUMS_H

#include <stdbool.h>
#include <stdint.h>

/* x [n]. False where too few elements are large enough to say. */
bool fd_are_f16_sums(const double *x, int64_t n);

#endif

/* Rounding to an element type, as FD_GUESS_ROUNDED has it: every element by itself, or a cache's rows in blocks of 32. What has scales of
 * its own is in round_scaled.h. */
#ifndef FD_COMPARE_HYPOTHESIS_ROUND_TYPE_H
#define FD_COMPARE_HYPOTHESIS_ROUND_TYPE_H

#include <stdint.h>

/* Besides fd_dtype's FD_F16, FD_BF16, and FD_Q8_0, FD_Q5_1, FD_Q5_0, FD_Q4_1, FD_Q4_0: 8-bit floating point, too large values made the
 * largest (OCP 8-bit Floating Point Specification); int8 whose scale is the largest value / 127, or / 128; int4, / 7; and Q8_0 that
 * counts in the scale that its blocks keep, where ggml counts in that before it was rounded to binary16; uint8 from the least value to the
 * largest. */
enum {
    FD_ROUND_E4M3 = -1,
    FD_ROUND_E5M2 = -2,
    FD_ROUND_INT8 = -3,
    FD_ROUND_INT8_128 = -4,
    FD_ROUND_INT4 = -5,
    FD_ROUND_Q8_0_KEPT = -6,
    FD_ROUND_UINT8 = -7
};

/* In place. Blocks with NaN or Inf stay, and rows that are no whole blocks. */
void fd_round_type_rows(int32_t type, float *rows, int64_t n_row, int64_t width);

/* tau [n_row, width]: of the rows as they are, then of the rounded ones. scratch: twice as many. */
void fd_round_type_bounds(int32_t type, const float *rows, double *tau, int64_t n_row, int64_t width, double *scratch);

const char *fd_round_type_name(int32_t type); /* "binary16", "q8_0" */

#endif

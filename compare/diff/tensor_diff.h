/* Element-by-element comparison of two arrays, without tolerance.
 *
 * The elements are compared as bits of the coarser of the two types (`grid`): both are rounded to it once, so that a
 * binary64 run agrees with a binary32 one where it rounds to the same number. Every NaN is the same NaN; -0 and +0
 * differ. NaN and Inf are classified before any subtraction, so no NaN ever reaches a maximum or a limit. */
#ifndef FD_COMPARE_DIFF_TENSOR_DIFF_H
#define FD_COMPARE_DIFF_TENSOR_DIFF_H

#include <stdint.h>

#include "base/dtype.h"

typedef struct fd_tensor_view { /* borrowed */
    const void *data;           /* [n] */
    uint32_t dtype;             /* FD_F32, FD_F64, FD_F16 or FD_BF16 */
} fd_tensor_view;

/* "No distance": a NaN or an Inf is on one side. */
#define FD_ULP_NONE UINT64_MAX

typedef struct fd_element_diff {
    int64_t index;    /* -1: there is none */
    double ref, cand; /* as they are, before rounding to the grid */
    uint64_t ulp;     /* steps of the grid between them; -0 and +0 are one step apart */
} fd_element_diff;

typedef struct fd_tensor_diff {
    uint32_t grid; /* the type the bits were compared in */
    int64_t n;     /* elements compared */
    int64_t n_differ;
    fd_element_diff first;   /* lowest index that differs */
    fd_element_diff largest; /* largest |cand - ref| of differing finite pairs; the lowest index of a tie */
    double largest_abs;      /* 0 when largest.index is -1 */
    int64_t n_nan_same;      /* NaN on both sides */
    int64_t n_nan_new;       /* in the candidate alone */
    int64_t n_nan_lost;      /* in the reference alone */
    int64_t n_inf_new;       /* candidate infinite, reference finite */
    int64_t n_inf_lost;      /* reference infinite, candidate finite */
    int64_t n_inf_sign;      /* infinite on both sides, of opposite sign */
} fd_tensor_diff;

/* The coarser of two types: fewer bits of significand (F64 < F32 < F16 < BF16). */
uint32_t fd_coarser(uint32_t a, uint32_t b);

/* Compares elements in parts: start, then add the parts in order. `grid` is at least as coarse as both views:
 * fd_coarser of the types that were *stored*, also where 16-bit elements are handed over widened to F32. */
void fd_diff_start(uint32_t grid, fd_tensor_diff *out);
void fd_diff_add(fd_tensor_view ref, fd_tensor_view cand, int64_t n, fd_tensor_diff *out);
/* Both at once. */
void fd_diff_tensors(fd_tensor_view ref, fd_tensor_view cand, int64_t n, uint32_t grid, fd_tensor_diff *out);

#endif

/* Where a row of several matrices with one input lies: the matrices follow each other, or (silu_pair) two interleave.
 * `Args` has part[FD_MATVEC_PARTS] with n_row, and silu_pair. */
#ifndef FD_KERNELS_MATVEC_ROWS_CUH
#define FD_KERNELS_MATVEC_ROWS_CUH

#include "kernels/matvec/matvec.h"

/* Row `at` of all the parts is the returned row of part *part. */
template <class Args> __device__ __forceinline__ int64_t row_of(const Args &a, int64_t at, int *part) {
    *part = 0;
    if (a.silu_pair) {
        *part = (int)(at & 1);
        return at >> 1;
    }
#pragma unroll
    for (int i = 0; i < FD_MATVEC_PARTS - 1; i++)
        if (*part == i && at >= a.part[i].n_row) {
            at -= a.part[i].n_row;
            *part = i + 1;
        }
    return at;
}

template <class Args> __device__ __forceinline__ const auto &part_of(const Args &a, int part) {
    return part == 0 ? a.part[0] : part == 1 ? a.part[1] : a.part[2];
}

#endif

/* Sums over a warp for the summaries. */
#ifndef FD_KERNELS_OBSERVE_SUMMARY_CUH
#define FD_KERNELS_OBSERVE_SUMMARY_CUH

#include "kernels/tree.cuh"
#include "numerics/summary.h"

/* Of integers: no order. All lanes get it. */
template <typename T> __device__ __forceinline__ T fd_warp_total(T value) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* The tree over 64 partial sums, lane l's 2l and 2l + 1. All lanes get it. */
__device__ __forceinline__ double fd_warp_tree64(const double (&partial)[2]) {
    double sum = partial[0] + partial[1];
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, offset);
    return sum;
}

#endif

/* The factor r of RMS_NORM, shared by the kernels of its own and the matrix-vector kernels that norm x on the way in. */
#ifndef FD_KERNELS_NORM_CUH
#define FD_KERNELS_NORM_CUH

#include "kernels/tree.cuh"
#include "numerics/contract.h"

/* Called by one whole warp; all lanes get r. `pair(group)` gives the lane's elements of a group of 64, those of
 * partials 2l and 2l + 1, with 0 past the row's end: Σx² is never -0, so that fma(0, 0, sum) leaves every bit as it
 * was. */
template <class Pair> __device__ __forceinline__ float fd_inverse_rms(int n, float eps, Pair pair) {
    float partial[2] = {0.0f, 0.0f};
    const int n_group = (n + 63) / 64;
#pragma unroll 8
    for (int group = 0; group < n_group; group++) {
        const float2 x = pair(group);
        partial[0] = fmaf(x.x, x.x, partial[0]);
        partial[1] = fmaf(x.y, x.y, partial[1]);
    }
    const float sum = fd_tree_lanes<32>(fd_tree(partial));
    return 1.0f / sqrtf(sum / (float)n + eps);
}

#endif

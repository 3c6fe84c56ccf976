/* The factor r of RMS_NORM, shared by the kernel of its own and the matrix-vector kernel that norms on the way in. */
#ifndef FD_KERNELS_NORM_CUH
#define FD_KERNELS_NORM_CUH

#include "kernels/tree.cuh"
#include "numerics/contract.h"

/* Called by one whole warp; all lanes get r. `at(k)` is element k of the row: lane l follows partials 2l and 2l + 1. */
template <class Element> __device__ __forceinline__ float fd_inverse_rms(int n, float eps, int lane, Element at) {
    float partial[2] = {0.0f, 0.0f};
    int k = 2 * lane;
#pragma unroll 8
    for (; k + 1 < n; k += 64) {
        const float a = at(k), b = at(k + 1);
        partial[0] = fmaf(a, a, partial[0]);
        partial[1] = fmaf(b, b, partial[1]);
    }
    if (k < n) {
        const float a = at(k);
        partial[0] = fmaf(a, a, partial[0]);
    }
    const float sum = fd_tree_lanes<32>(fd_tree(partial));
    return 1.0f / sqrtf(sum / (float)n + eps);
}

#endif

/* RMS_NORM on the device: its factor r and its last step, for the norm's own kernels and for the matrix-vector kernels
 * that norm x on the way in. */
#ifndef FD_KERNELS_ELEMENTWISE_NORM_CUH
#define FD_KERNELS_ELEMENTWISE_NORM_CUH

#include "kernels/tree.cuh"
#include "numerics/contract.h"

/* The squares of N groups from `group` on, whose reads overlap, added to a lane's two partial sums. */
template <int N, class Pair> __device__ __forceinline__ void fd_add_squares(Pair pair, int group, float (&partial)[2]) {
    float2 x[N];
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = pair(group + i);
#pragma unroll
    for (int i = 0; i < N; i++) {
        partial[0] = fmaf(x[i].x, x[i].x, partial[0]);
        partial[1] = fmaf(x[i].y, x[i].y, partial[1]);
    }
}

/* Called by one whole warp; all lanes get r. `pair(group)` gives the lane's elements of a group of 64, those of
 * partials 2l and 2l + 1, with 0 past the row's end: Σx² is never -0, so that fma(0, 0, sum) leaves every bit as it
 * was. */
template <class Pair> __device__ __forceinline__ float fd_inverse_rms(int n, float eps, Pair pair) {
    float partial[2] = {0.0f, 0.0f};
    const int n_group = (n + 63) / 64;
    int group = 0;
#pragma unroll 1
    for (; group + 8 <= n_group; group += 8) fd_add_squares<8>(pair, group, partial);
    if (n_group & 4) fd_add_squares<4>(pair, group, partial), group += 4;
    if (n_group & 2) fd_add_squares<2>(pair, group, partial), group += 2;
    if (n_group & 1) fd_add_squares<1>(pair, group, partial);
    const float sum = fd_tree_lanes<32>(fd_tree(partial));
    return 1.0f / sqrtf(sum / (float)n + eps);
}

/* (x·r)·w of four elements. */
__device__ __forceinline__ float4 fd_normed(const float4 &x, float r, const float4 &w) {
    return make_float4((x.x * r) * w.x, (x.y * r) * w.y, (x.z * r) * w.z, (x.w * r) * w.w);
}

#endif

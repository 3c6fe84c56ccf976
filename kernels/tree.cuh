/* The contract's tree over 64 partial sums, spread over lanes.
 *
 * Level b of the tree adds the two sums whose indices differ in bit b, low bits first. Where the partials live does not
 * matter: a lane that holds neighbours adds inside itself, lanes exchange by shfl_xor, and the sums are the same. */
#ifndef FD_KERNELS_TREE_CUH
#define FD_KERNELS_TREE_CUH

#include <cuda_runtime.h>

/* Neighbours pair up inside the lane; N a power of two. */
template <int N> __device__ __forceinline__ float fd_tree(float (&a)[N]) {
#pragma unroll
    for (int m = N; m > 1; m /= 2)
#pragma unroll
        for (int i = 0; i < m / 2; i++) a[i] = a[2 * i] + a[2 * i + 1];
    return a[0];
}

/* Then across LANES neighbouring lanes; all of them get the sum. */
template <int LANES> __device__ __forceinline__ float fd_tree_lanes(float sum) {
#pragma unroll
    for (int offset = 1; offset < LANES; offset *= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, offset);
    return sum;
}

/* The same tree for COUNT sums at once, whose partials lie in LANES lanes, STEP apart, by fewer exchanges: at each level
 * a lane hands half of its sums to its partner and keeps the other half, as long as it has several (32 sums in 32 lanes:
 * 31 for 160). The lanes' bits choose, low ones first, by the sums' bits, high ones first: of as many sums as lanes, lane
 * l has the one whose number is l's bits reversed, in a[0]. Compile-time constants keep the array in registers. */
template <int COUNT, int LANES, int STEP, int N>
__device__ __forceinline__ void fd_tree_scatter(float (&a)[N], int lane) {
    constexpr int half = COUNT > 1 ? COUNT / 2 : 1;
    const bool upper = lane & STEP;
#pragma unroll
    for (int i = 0; i < half; i++) {
        const float keep = COUNT > 1 && upper ? a[i + COUNT / 2] : a[i];
        const float give = COUNT > 1 && !upper ? a[i + COUNT / 2] : a[i];
        a[i] = keep + __shfl_xor_sync(0xffffffffu, give, STEP);
    }
    if constexpr (LANES > 2) fd_tree_scatter<half, LANES / 2, 2 * STEP>(a, lane);
}

/* The last BITS bits of x the other way round. */
template <int BITS> __device__ __forceinline__ int fd_bit_reverse(int x) {
    return (int)(__brev((unsigned)x) >> (32 - BITS));
}

/* Largest value of the warp; NaN loses, as in fmaxf. */
__device__ __forceinline__ float fd_warp_max(float value) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

/* Σ e[t], t < n, in the contract's order, by one whole warp: lane l follows partials l and l + 32. */
__device__ __forceinline__ float fd_warp_sum(const float *e, int n, int lane) {
    float low = 0.0f, high = 0.0f;
    int t = lane;
#pragma unroll 4
    for (; t + 32 < n; t += 64) {
        low = low + __ldcg(e + t);
        high = high + __ldcg(e + t + 32);
    }
    if (t < n) low = low + __ldcg(e + t);
    return fd_tree_lanes<32>(low) + fd_tree_lanes<32>(high);
}

#endif

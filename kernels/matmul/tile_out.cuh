/* How the tiled matrix products end: the tree over what two warps hold, and the outputs written. */
#ifndef FD_KERNELS_MATMUL_TILE_OUT_CUH
#define FD_KERNELS_MATMUL_TILE_OUT_CUH

#include "kernels/tree.cuh"

/* A pair of warps follows 32 PARTS outputs, the first warp (half 0) lanes 0 to 31 of their partials, the second the
 * others. `sum_of(q, i)`: this lane's partial of output i of part q. Levels 0 to 4 go across a warp's lanes, level 5
 * through `exchange`, 32 PARTS floats of the pair; `meet()` lets its warps wait for each other. `keep(q, i, total)` gets
 * each output in one lane. */
template <int PARTS, typename Sum, typename Meet, typename Keep>
__device__ __forceinline__ void fd_tile_add_up(int half, float *exchange, Sum sum_of, Meet meet, Keep keep) {
    const int lane = (int)(threadIdx.x % 32);
    float sum[PARTS];
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        float part[32];
#pragma unroll
        for (int i = 0; i < 32; i++) part[i] = sum_of(q, i);
        fd_tree_scatter32(part, lane);
        sum[q] = part[0];
        if (half == 1) exchange[q * 32 + lane] = sum[q];
    }
    meet();
    if (half == 1) return;
#pragma unroll
    for (int q = 0; q < PARTS; q++) keep(q, fd_bit_reverse5(lane), sum[q] + exchange[q * 32 + lane]);
}

#endif

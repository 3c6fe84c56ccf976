/* The products of one unit of weights and x, added to a lane's partial sums. */
#ifndef FD_KERNELS_MATVEC_ADD_CUH
#define FD_KERNELS_MATVEC_ADD_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* A lane's P elements of a group of x in shared memory, in the order of quad_at (kernels/matvec_stage.cuh). */
template <int P> struct lane_x { float value[P]; };
__device__ __forceinline__ void read_x(const float *xs, int group, int lane, lane_x<8> &x) {
    const float4 *quads = (const float4 *)xs + group * 16 + lane;
    const float4 first = quads[0], second = quads[8];
    x = {{first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w}};
}
__device__ __forceinline__ void read_x(const float *xs, int group, int lane, lane_x<2> &x) {
    const float2 pair = ((const float2 *)xs)[group * 32 + lane];
    x = {{pair.x, pair.y}};
}

/* Adds the products of one unit. In a row's last unit elements past n_col take part in nothing (tail). */
template <class Format, int P, int R, int T, bool TAIL>
__device__ __forceinline__ void add_unit(const typename Format::unit (&units)[R], int at, int lane, uint32_t magic,
                                         const float *xs, int stride, int n_col, float (&acc)[R][T][P]) {
#pragma unroll
    for (int g = 0; g < Format::groups; g++) {
        const int group = at * Format::groups + g, k = group * 64 + lane * P;
        if (TAIL && group * 64 >= n_col) return;
        float w[R][P];
#pragma unroll
        for (int r = 0; r < R; r++) Format::decode(units[r], g, lane, magic, w[r]);
#pragma unroll
        for (int t = 0; t < T; t++) {
            lane_x<P> x;
            read_x(xs + t * stride, group, lane, x);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int i = 0; i < P; i++)
                    if (!TAIL || k + i < n_col) acc[r][t][i] = fmaf(w[r][i], x.value[i], acc[r][t][i]);
        }
    }
}

#endif

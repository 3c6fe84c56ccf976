/* The products of one unit of weights and x, added to a lane's partial sums. */
#ifndef FD_KERNELS_MATVEC_ADD_CUH
#define FD_KERNELS_MATVEC_ADD_CUH

#include "kernels/formats/formats.cuh"
#include "kernels/matvec/stage.cuh"

/* A lane's P elements of a group of x in shared memory, in the order of quad_at (kernels/matvec/stage.cuh). */
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

/* Adds the products of one unit, decoded by decode_fused when FUSED. In a row's last unit elements past n_col take part
 * in nothing (tail). */
template <class Format, int P, int R, int T, bool TAIL, bool FUSED>
__device__ __forceinline__ void add_unit(const typename Format::unit (&units)[R], int at, int lane, uint32_t magic,
                                         uint32_t fused_magic, const float *xs, int stride, int n_col,
                                         float (&acc)[R][T][P]) {
#pragma unroll
    for (int g = 0; g < Format::groups; g++) {
        const int group = at * Format::groups + g, k = group * 64 + lane * P;
        if (TAIL && group * 64 >= n_col) return;
        float w[R][P];
#pragma unroll
        for (int r = 0; r < R; r++) {
            if constexpr (FUSED)
                Format::decode_fused(units[r], g, lane, magic, fused_magic, w[r]);
            else
                Format::decode(units[r], g, lane, magic, w[r]);
        }
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

/* decode_fused is wrong about the sign of a zero and about infinite scales, which only a dot that is zero or NaN can
 * show: an ambiguous one, whose partial sums are then computed again, from memory and without decode_fused. */
__device__ __forceinline__ bool fd_is_ambiguous(float dot) {
    return !(fabsf(dot) > 0.0f);
}
template <class Format, int P>
__device__ __forceinline__ void recompute_dot(const matvec_args &a, int64_t row, int lane, uint32_t magic,
                                              const float *xs, float (&acc)[P]) {
    const fd_cursor from = Format::begin(row_data(a, row), a.scale_offset, lane);
    float again[1][1][P] = {};
#pragma unroll 1
    for (int at = 0; at * 64 * Format::groups < a.n_col; at++) {
        const typename Format::unit unit[1] = {Format::template load<FD_READ_ONCE>(from, at, lane)};
        add_unit<Format, P, 1, 1, true, false>(unit, at, lane, magic, 0, xs, 0, a.n_col, again);
    }
#pragma unroll
    for (int i = 0; i < P; i++) acc[i] = again[0][0][i];
}

#endif

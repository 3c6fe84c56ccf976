/* Eight rows of weights times one row of activations, by one warp.
 *
 * Lane 4g + t follows row g. An mma takes 16 rows: a block of even number of each of the eight rows, then the next one,
 * of odd number, of each; its columns are x's blocks of even and odd number in turn, so that each lane gets its row's
 * two dots whole. Lane t has those of parity t / 2. Where a block has two scales, columns 2 and 3 of each four hold its
 * last half, columns 0 and 1 its first, zeros elsewhere: lane t has half t % 2 alone. */
#ifndef FD_KERNELS_INT8_ROWS_CUH
#define FD_KERNELS_INT8_ROWS_CUH

#include "kernels/int8/formats.cuh"
#include "kernels/int8/mma.cuh"
#include "kernels/int8/stage.cuh"

/* What a lane reads of x. */
struct q8_lane_x {
    const int8_t *q;
    const float *d, *sum; /* of its parity's blocks */
    uint32_t mask;        /* of halves */
    int parity, n_block;
};

__device__ __forceinline__ q8_lane_x q8_lane_x_of(const q8_shared &s, int n_col) {
    const int lane = (int)threadIdx.x % 32, column = lane / 4, t = lane % 4, parity = t / 2;
    q8_lane_x x;
    x.q = s.q + (column % 2 * 4 + t) * 16;
    x.d = s.d + parity * s.per_parity;
    x.sum = s.sum + parity * s.per_parity;
    x.mask = t / 2 == column / 2 % 2 ? 0xffffffffu : 0u;
    x.parity = parity;
    x.n_block = n_col / 32;
    return x;
}

/* Of a unit: the dots of the lane's row and parity, as floats of FD_Q8_MAGIC_BITS + s, and its scales' head. */
template <uint32_t DTYPE> struct q8_dots {
    float magic_s[q8_format<DTYPE>::blocks];
    uint32_t head[q8_format<DTYPE>::head_words];
};

/* `unit`: the lane's row's number `at`; `scales`: its part of the plane. */
template <uint32_t DTYPE, fd_reads READS>
__device__ __forceinline__ q8_dots<DTYPE> q8_dots_of(const uint8_t *unit, const uint8_t *scales, int at,
                                                     const q8_lane_x &x) {
    using F = q8_format<DTYPE>;
    const int t = (int)threadIdx.x % 4;
    uint32_t even[F::words], odd[F::words];
    q8_dots<DTYPE> dots;
    F::template load<READS>(unit, t, even);
    F::template load<READS>(unit, t + 4, odd);
    F::template load_head<READS>(unit, scales, x.parity, dots.head);
#pragma unroll
    for (int j = 0; j < F::blocks; j++) {
        uint2 q = *(const uint2 *)(x.q + (at * (F::blocks / 2) + j / 2) * 128 + j % 2 * 8);
        if (F::halves == 2) q.x &= x.mask, q.y &= x.mask;
        uint32_t w[4];
        int s[4];
        F::ints(even, j, w[0], w[2]);
        F::ints(odd, j, w[1], w[3]);
        q8_mma(s, w, q.x, q.y);
        dots.magic_s[j] = __int_as_float(x.parity ? s[3] : s[0]);
    }
    return dots;
}

/* Adds the unit's blocks to the partial sum of the lane's row and parity. */
template <uint32_t DTYPE, fd_reads READS>
__device__ __forceinline__ void q8_add_unit(const uint8_t *unit, const uint8_t *scales, int at, const q8_lane_x &x,
                                            float &acc) {
    using F = q8_format<DTYPE>;
    const q8_dots<DTYPE> dots = q8_dots_of<DTYPE, READS>(unit, scales, at, x);
    const int lane = (int)threadIdx.x % 32;
    float2 d[F::blocks / 2], sum[F::blocks / 2];
#pragma unroll
    for (int j = 0; j < F::blocks / 2; j++) {
        d[j] = ((const float2 *)(x.d + at * F::blocks))[j];
        if (F::minimum) sum[j] = ((const float2 *)(x.sum + at * F::blocks))[j];
    }
#pragma unroll
    for (int j = 0; j < F::blocks; j++) {
        const float dj = j % 2 ? d[j / 2].y : d[j / 2].x;
        const float own = fd_q8_times(dots.magic_s[j], F::scale(dots.head, x.parity, j, F::halves == 2 ? lane % 2 : 0));
        float next = acc;
        if constexpr (F::halves == 1) {
            next = fmaf(own, dj, next);
        } else { /* the halves of a block lie in neighbouring lanes */
            next = fmaf(__shfl_sync(0xffffffffu, own, lane & ~1), dj, next);
            next = fmaf(__shfl_sync(0xffffffffu, own, lane | 1), dj, next);
        }
        if (F::minimum)
            next = fd_q8_subtract(next, F::min(dots.head, x.parity, j), j % 2 ? sum[j / 2].y : sum[j / 2].x);
        /* A row's last unit may have blocks past its end, but for the types in blocks of 256. */
        const int block = at * 2 * F::blocks + x.parity + 2 * j;
        acc = F::blocks == 4 || block < x.n_block ? next : acc;
    }
}

/* The row's dot, in all four of its lanes. */
__device__ __forceinline__ float q8_dot(float acc) {
    return acc + __shfl_xor_sync(0xffffffffu, acc, 2);
}

#endif

/* A block of 32 activations made int8 by four neighbouring lanes. */
#ifndef FD_KERNELS_INT8_BLOCK_CUH
#define FD_KERNELS_INT8_BLOCK_CUH

#include "kernels/device.cuh"
#include "numerics/q8act.h"

/* Of a lane's eight elements: q in two words; of the block, in all four lanes: scale and d·Σq. */
struct fd_q8_eighths {
    uint32_t low, high;
    float d, sum;
};

/* v: the lane's eight elements; lanes 4i … 4i + 3 hold a block in order, all 32 take part. */
__device__ __forceinline__ fd_q8_eighths fd_q8_quarter_block(const float (&v)[8]) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = fd_q8_larger(largest, v[i]);
    largest = fd_q8_larger(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fd_q8_larger(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float inverse = fd_q8_inverse(largest);
    fd_q8_eighths out = {0, 0, fd_q8_scale(largest), 0.0f};
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int q = fd_q8_round(v[i], inverse);
        (i < 4 ? out.low : out.high) |= ((uint32_t)q & 255u) << 8 * (i % 4);
        sum += q;
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    out.sum = fd_q8_sum(out.d, sum);
    return out;
}

#endif

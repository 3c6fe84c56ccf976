/* What the kernels of fast attention of one row share (kernels/attention/single_block_f16.cu, kernels/attention/split_kv_f16.cu). */
#ifndef FD_KERNELS_ATTENTION_SPLIT_KV_F16_CUH
#define FD_KERNELS_ATTENTION_SPLIT_KV_F16_CUH

#include "kernels/device.cuh"
#include "kernels/attention/fused_f16.h"
#include "kernels/attention/fast_math.cuh"
#include "kernels/formats/parts.cuh"

/* Near the beginning (kernels/attention/single_block_f16.cu): one row, of sequence 0, heads of a multiple of eight elements. */
fd_code fd_launch_fast_near(const fd_launch_context *ctx, const fd_fast_attention *in, fd_error *err);

__device__ __forceinline__ void fast_to_reals(const uint4 &pairs, float (&x)[8]) {
    const uint32_t pair[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int i = 0; i < 4; i++) x[2 * i] = fd_low_half(pair[i]), x[2 * i + 1] = fd_high_half(pair[i]);
}

__device__ __forceinline__ uint16_t fast_to_half(float x) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

__device__ __forceinline__ void fast_leave(const fd_fast_out &out, int64_t at, float value) {
    if (out.half) out.half[at] = fast_to_half(value);
    if (out.real) out.real[at] = value;
}

/* q·k of eight elements: two chains, as latency is what takes the time. */
__device__ __forceinline__ float fast_dot(const float (&q)[8], const float (&k)[8]) {
    float low = q[0] * k[0], high = q[4] * k[4];
#pragma unroll
    for (int i = 1; i < 4; i++) low = fmaf(q[i], k[i], low), high = fmaf(q[4 + i], k[4 + i], high);
    return low + high;
}

#endif

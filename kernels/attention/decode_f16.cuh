/* What the kernels of fast attention of one row share (kernels/attention/single_block_f16.cu,
 * kernels/attention/split_kv_f16.cu). */
#ifndef FD_KERNELS_ATTENTION_DECODE_F16_CUH
#define FD_KERNELS_ATTENTION_DECODE_F16_CUH

#include "kernels/device.cuh"
#include "kernels/attention/attention_f16.h"
#include "kernels/approx_math.cuh"
#include "kernels/formats/parts.cuh"

/* Near the beginning (kernels/attention/single_block_f16.cu): one row, of sequence 0, heads of a multiple of eight
 * elements. */
fd_code fd_launch_attn_single_block_f16(const fd_launch_context *ctx, const fd_attn_f16 *in, fd_error *err);

__device__ __forceinline__ void fd_unpack_halves(const uint4 &pairs, float (&x)[8]) {
    const uint32_t pair[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int i = 0; i < 4; i++) x[2 * i] = fd_low_half(pair[i]), x[2 * i + 1] = fd_high_half(pair[i]);
}

__device__ __forceinline__ uint16_t fd_to_half(float x) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

/* The first position that the row at `pos` sees. */
__device__ __forceinline__ int fd_first_seen(const fd_attn_f16 &a, int pos) {
    return a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
}

/* Element d of the newest rows of K, after RoPE, and of V, rounded: to shared memory, and to element `at` + d of the
 * caches when this block is the one that writes them. */
template <int WIDTH>
__device__ __forceinline__ void fd_write_newest(const fd_attn_f16 &a, int64_t at, int d, float key, float value,
                                                bool to_caches, uint16_t (&newest)[2][WIDTH]) {
    const uint16_t k = fd_to_half(key), v = fd_to_half(value);
    newest[0][d] = k, newest[1][d] = v;
    if (to_caches && d < a.head_dim) a.cache_k[at + d] = k, a.cache_v[at + d] = v;
}

__device__ __forceinline__ void fd_store(const fd_f16_out &out, int64_t at, float value) {
    if (out.half) out.half[at] = fd_to_half(value);
    if (out.real) out.real[at] = value;
}

/* q·k of eight elements: two chains, as latency is what takes the time. */
__device__ __forceinline__ float fd_dot8(const float (&q)[8], const float (&k)[8]) {
    float low = q[0] * k[0], high = q[4] * k[4];
#pragma unroll
    for (int i = 1; i < 4; i++) low = fmaf(q[i], k[i], low), high = fmaf(q[4 + i], k[4 + i], high);
    return low + high;
}

#endif

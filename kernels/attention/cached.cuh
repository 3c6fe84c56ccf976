/* Elements of a K/V cache as floats: the cache is of float, or of uint16_t, which are binary16. */
#ifndef FD_KERNELS_ATTENTION_CACHED_CUH
#define FD_KERNELS_ATTENTION_CACHED_CUH

#include <cuda_fp16.h>
#include <stdint.h>

#include "base/status.h"

/* x as the cache keeps it. */
template <class Element> __device__ __forceinline__ Element fd_to_cached(float x);
template <> __device__ __forceinline__ float fd_to_cached<float>(float x) {
    return x;
}
template <> __device__ __forceinline__ uint16_t fd_to_cached<uint16_t>(float x) {
    return __half_as_ushort(__float2half_rn(x));
}

__device__ __forceinline__ float fd_from_cached(float x) {
    return x;
}
__device__ __forceinline__ float fd_from_cached(uint16_t x) {
    return __half2float(__ushort_as_half(x));
}

__device__ __forceinline__ float2 fd_from_halves(uint32_t two) {
    __half2_raw raw;
    raw.x = (uint16_t)two, raw.y = (uint16_t)(two >> 16);
    return __half22float2(__half2(raw));
}
__device__ __forceinline__ float4 fd_from_halves(uint2 four) {
    const float2 low = fd_from_halves(four.x), high = fd_from_halves(four.y);
    return make_float4(low.x, low.y, high.x, high.y);
}

/* x as a reader of the cache gets it. */
template <class Element> __device__ __forceinline__ float fd_as_cached(float x) {
    return fd_from_cached(fd_to_cached<Element>(x));
}

/* Of global memory; four elements lie at a multiple of their size. */
template <class Element> __device__ __forceinline__ float fd_load_cached(const Element *at) {
    return fd_from_cached(__ldcg(at));
}
__device__ __forceinline__ float4 fd_load_cached4(const float *at) {
    return __ldcg((const float4 *)at);
}
__device__ __forceinline__ float4 fd_load_cached4(const uint16_t *at) {
    return fd_from_halves(__ldcg((const uint2 *)at));
}

/* Eight elements. */
__device__ __forceinline__ void fd_spread_halves(uint4 eight, float *x) {
    const float4 a = fd_from_halves(make_uint2(eight.x, eight.y)), b = fd_from_halves(make_uint2(eight.z, eight.w));
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

/* Of shared memory. */
__device__ __forceinline__ float4 fd_shared_cached4(const float *at) {
    return *(const float4 *)at;
}
__device__ __forceinline__ float4 fd_shared_cached4(const uint16_t *at) {
    return fd_from_halves(*(const uint2 *)at);
}

/* Calls `launch(element)`, whose type is that of a cache's elements. */
template <class Element> struct fd_element { using type = Element; };
template <class Launch> static fd_code fd_with_cached(bool halves, Launch launch) {
    return halves ? launch(fd_element<uint16_t>()) : launch(fd_element<float>());
}

#endif

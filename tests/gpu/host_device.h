/* What kernels/formats/ needs of a device, on the host: vector types, the few intrinsics, and one thread. Included
 * before its headers, in the place of kernels/device.cuh. */
#ifndef FD_TESTS_GPU_HOST_DEVICE_H
#define FD_TESTS_GPU_HOST_DEVICE_H
#define FD_KERNELS_DEVICE_CUH

#include <math.h>
#include <stdint.h>

extern "C" {
#include "model/gguf/quant.h"
}

#define __device__
#define __host__
#define __forceinline__ inline

struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct dim3_of_one {
    unsigned x = 1, y = 1, z = 1;
};
static const dim3_of_one blockDim;

static inline uint32_t __shfl_sync(uint32_t, uint32_t value, int) {
    return value;
}
/* PRMT with selectors below 8: byte i of the result is byte (selector's nibble i) of b:a. */
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) result |= (uint32_t)(bytes >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
    return result;
}
template <typename Word> static inline Word __ldcs(const Word *from) {
    return *from;
}
template <typename Word> static inline Word __ldg(const Word *from) {
    return *from;
}
static inline float fd_half_to_float(uint16_t half) {
    return fd_f16_to_f32(half);
}

#endif

/* What the formats of kernels/formats.cuh are made of: loads, bytes to binary32, cursors. */
#ifndef FD_KERNELS_FORMAT_PARTS_CUH
#define FD_KERNELS_FORMAT_PARTS_CUH

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/device.cuh"
#include "numerics/contract.h"

/* Weights that one launch reads once leave the caches first; those that several blocks read stay; and those that were
 * copied to shared memory are read there. */
enum fd_reads { FD_READ_ONCE, FD_READ_AGAIN, FD_READ_SHARED };
template <typename Word, fd_reads READS> __device__ __forceinline__ Word fd_fetch(const uint8_t *from) {
    if (READS == FD_READ_SHARED) return *(const Word *)from;
    return READS == FD_READ_ONCE ? __ldcs((const Word *)from) : __ldg((const Word *)from);
}

__device__ __forceinline__ float fd_low_half(uint32_t pair) {
    return fd_half_to_float((uint16_t)pair);
}
__device__ __forceinline__ float fd_high_half(uint32_t pair) {
    return fd_half_to_float((uint16_t)(pair >> 16));
}

/* Byte i of the word minus `centre`, exact: the byte becomes the last bits of 2^23, from which 2^23 + centre is taken;
 * two plain instructions where a conversion from integer would wait for a slower unit. `magic` is fd_magic(). */
template <int CENTRE> __device__ __forceinline__ float fd_byte(uint32_t word, int i, uint32_t magic) {
    return fd_from_bits32(__byte_perm(word, magic, 0x7540u + (uint32_t)i)) - (float)(8388608 + CENTRE);
}

/* The byte as an offset of 2^15, or of 2^7 for one below 128, one instruction; `magic` holds the power's bits. */
__device__ __forceinline__ float fd_byte_of_2_15(uint32_t word, int i, uint32_t magic) {
    return fd_from_bits32(__byte_perm(word, magic, 0x7604u + ((uint32_t)i << 4)));
}
__device__ __forceinline__ float fd_byte_of_2_7(uint32_t word, int i, uint32_t magic) {
    return fd_from_bits32(__byte_perm(word, magic, 0x7054u + ((uint32_t)i << 8)));
}
constexpr uint32_t FD_2_15_BITS = 0x47000000u, FD_2_7_BITS = 0x43000000u;

/* The bits of 2^23, or others, in a register for as long as the kernel runs. Blocks are one thread deep, which the
 * compiler does not know, and what a lane exchanged it cannot make anew: with a constant it would spend a move before
 * every use. */
__device__ __forceinline__ uint32_t fd_magic(uint32_t bits = 0x4b000000u) {
    return __shfl_sync(0xffffffffu, bits + (blockDim.z - 1), 0);
}

/* The lane's share of a row's first unit, and the row's header or its plane of scales. */
struct fd_cursor {
    const uint8_t *own, *shared;
};

/* Steps of a cursor from unit to unit, in bytes. */
template <int GROUPS, int WORDS, int OWN_STEP, int SHARED_STEP> struct fd_format_shape {
    static constexpr int groups = GROUPS; /* of 64 elements, a unit */
    static constexpr int words = WORDS;   /* registers a unit takes */
    static constexpr int own_step = OWN_STEP, shared_step = SHARED_STEP;
    static constexpr bool fused = false; /* there is a decode_fused */
    static constexpr uint32_t fused_bits = 0;
    static __device__ __forceinline__ void advance(fd_cursor &c, int n_unit) {
        c.own += n_unit * OWN_STEP;
        if (SHARED_STEP) c.shared += n_unit * SHARED_STEP;
    }
};

template <uint32_t DTYPE, int P> struct fd_lane_format;

#endif

/* What the formats of kernels/formats/formats.cuh are made of: loads, bytes to binary32, cursors, and the decoding that
 * formats with centred quants share. */
#ifndef FD_KERNELS_FORMATS_PARTS_CUH
#define FD_KERNELS_FORMATS_PARTS_CUH

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

/* Word i of a load. */
__device__ __forceinline__ uint32_t fd_word(const uint2 &words, int i) {
    return i == 0 ? words.x : words.y;
}
__device__ __forceinline__ uint32_t fd_word(const uint4 &words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

/* 2^POWER plus byte i of the word, exact, one instruction: the byte goes to where its last bit is worth 1. Behind 2^7
 * seven bits are free: the byte is below 128. `magic` is fd_opaque_magic(fd_power_bits(POWER)). */
constexpr uint32_t fd_power_bits(int power) {
    return (127u + (uint32_t)power) << 23;
}
template <int POWER> __device__ __forceinline__ float fd_byte_on_power(uint32_t word, int i, uint32_t magic) {
    static_assert(POWER == 23 || POWER == 15 || POWER == 7, "the power's bit that is worth 1 begins a byte");
    const uint32_t at = (uint32_t)i;
    return fd_from_bits32(__byte_perm(word, magic,
                                      POWER == 23   ? 0x7540u + at
                                      : POWER == 15 ? 0x7604u + (at << 4)
                                                    : 0x7054u + (at << 8)));
}

/* Byte i of the word minus `centre`, exact: two plain instructions where a conversion from integer would wait for a
 * slower unit. `magic` is fd_opaque_magic(). */
template <int CENTRE> __device__ __forceinline__ float fd_byte(uint32_t word, int i, uint32_t magic) {
    return fd_byte_on_power<23>(word, i, magic) - (float)(8388608 + CENTRE);
}

/* The bits of 2^23, or others, in a register for as long as the kernel runs. Blocks are one thread deep, which the
 * compiler does not know, and what a lane exchanged it cannot make anew: with a constant it would spend a move before
 * every use. */
__device__ __forceinline__ uint32_t fd_opaque_magic(uint32_t bits = fd_power_bits(23)) {
    return __shfl_sync(0xffffffffu, bits + (blockDim.z - 1), 0);
}

/* Bits 0-3 to bit 4 of bytes 0-3. */
__device__ __forceinline__ uint32_t fd_fifth_bits(uint32_t bits) {
    return (bits & 15) * 0x02040810u & 0x10101010u;
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
    /* Units that hold n_col elements. */
    static __host__ __device__ __forceinline__ int units_of(int64_t n_col) {
        return (int)((n_col + 64 * GROUPS - 1) / (64 * GROUPS));
    }
    static __device__ __forceinline__ void advance(fd_cursor &c, int n_unit) {
        c.own += n_unit * OWN_STEP;
        if (SHARED_STEP) c.shared += n_unit * SHARED_STEP;
    }
};

/* P bytes in words. */
template <int P> struct fd_bytes { uint32_t word[(P + 3) / 4]; };

/* Weights scale·(q − CENTRE), q unsigned bytes. `Quants` loads a unit (kernels/formats/formats.cuh) and has of its
 * lane's P elements of a group
 *   scale(unit, group, lane, magic)  their scale in binary32
 *   bytes(unit, group, lane)         their q
 * With a POWER there is decode_fused. */
template <class Quants, int P, int CENTRE, int POWER = 0> struct fd_centred_format : Quants {
    using unit = typename Quants::unit;
    static constexpr bool fused = POWER > 0;
    static constexpr uint32_t fused_bits = fused ? fd_power_bits(POWER) : 0;
    static __device__ __forceinline__ void decode(const unit &u, int group, int lane, uint32_t magic, float (&w)[P]) {
        const float scale = Quants::scale(u, group, lane, magic);
        const fd_bytes<P> q = Quants::bytes(u, group, lane);
#pragma unroll
        for (int i = 0; i < P && i < 4; i++)
#pragma unroll
            for (int k = 0; 4 * k + i < P; k++) w[4 * k + i] = scale * fd_byte<CENTRE>(q.word[k], i, magic);
    }
    static __device__ __forceinline__ void decode_fused(const unit &u, int group, int lane, uint32_t magic,
                                                        uint32_t fused_magic, float (&w)[P]) {
        const float scale = Quants::scale(u, group, lane, magic), offset = scale * -(float)((1 << POWER) + CENTRE);
        const fd_bytes<P> q = Quants::bytes(u, group, lane);
#pragma unroll
        for (int i = 0; i < P && i < 4; i++)
#pragma unroll
            for (int k = 0; 4 * k + i < P; k++)
                w[4 * k + i] = fmaf(scale, fd_byte_on_power<POWER>(q.word[k], i, fused_magic), offset);
    }
};

/* Weights scale·q + offset, q unsigned bytes, scale·q exact, so one rounding. `Quants` has bytes() and
 *   affine(unit, group, lane, magic, &scale, &offset) */
template <class Quants, int P> struct fd_affine_format : Quants {
    using unit = typename Quants::unit;
    static __device__ __forceinline__ void decode(const unit &u, int group, int lane, uint32_t magic, float (&w)[P]) {
        float scale, offset;
        Quants::affine(u, group, lane, magic, &scale, &offset);
        const fd_bytes<P> q = Quants::bytes(u, group, lane);
#pragma unroll
        for (int i = 0; i < P && i < 4; i++)
#pragma unroll
            for (int k = 0; 4 * k + i < P; k++) w[4 * k + i] = fmaf(scale, fd_byte<0>(q.word[k], i, magic), offset);
    }
};

template <uint32_t DTYPE, int P> struct fd_lane_format;

#endif

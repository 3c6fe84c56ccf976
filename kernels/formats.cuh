/* How a lane reads its share of a weight row (kernels/pack.h) and turns it into binary32, one format a struct.
 *
 * A row is read by 64 / P lanes; lane l owns partials P l … P l + P - 1 of every group of 64, so the products it adds
 * are its own alone. A cursor points at the lane's share of a row's first unit, `load` fetches a unit (`groups` groups)
 * into registers, `decode` gives the P weights of one of its groups.
 *
 * The values are bit-equal to model/quant.h's. Scales are f16 (11 significant bits): d·q, and Q4_K's and Q6_K's d·scale
 * (6 and 8 bits) and (d·scale)·q (at most 24 bits in all) are exact in binary32, so neither their order nor a fused
 * multiply-add can change a bit; only Q4_K's subtraction rounds, once, here inside an fma of exact products.
 *
 * Where `fused` is true, decode_fused takes an instruction less a weight: the quant with its offset m = 2^k + q stays in,
 * and w = fma(d, m, -d·2^k), whose addend is exact too. It has decode's values, but +0 where that has -0, and NaN where
 * a scale is infinite. The first shows in a dot only when the dot is zero, the second only when it is NaN: who uses it
 * does those rows again. */
#ifndef FD_KERNELS_FORMATS_CUH
#define FD_KERNELS_FORMATS_CUH

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

/* The bits of 2^23 (or others), in a register for as long as the kernel runs. Blocks are one thread deep, which the compiler does
 * not know, and what a lane exchanged it cannot make anew: with a constant it would spend a move before every use. */
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

template <> struct fd_lane_format<FD_F32, 8> : fd_format_shape<1, 8, 256, 0> {
    struct unit {
        uint4 first, second;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t, int lane) {
        return {row + lane * 32, row};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        const uint8_t *from = c.own + at * 256;
        return {fd_fetch<uint4, READS>(from), fd_fetch<uint4, READS>(from + 16)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int, int, uint32_t, float (&w)[8]) {
        const uint32_t bits[8] = {u.first.x,  u.first.y,  u.first.z,  u.first.w,
                                  u.second.x, u.second.y, u.second.z, u.second.w};
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = fd_from_bits32(bits[i]);
    }
};

template <> struct fd_lane_format<FD_F32, 2> : fd_format_shape<1, 2, 256, 0> {
    struct unit {
        uint2 pair;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t, int lane) {
        return {row + lane * 8, row};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {fd_fetch<uint2, READS>(c.own + at * 256)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int, int, uint32_t, float (&w)[2]) {
        w[0] = fd_from_bits32(u.pair.x);
        w[1] = fd_from_bits32(u.pair.y);
    }
};

/* The two 16-bit floats differ in how a word's halves become binary32. */
struct fd_f16_halves {
    static __device__ __forceinline__ float low(uint32_t pair) { return fd_low_half(pair); }
    static __device__ __forceinline__ float high(uint32_t pair) { return fd_high_half(pair); }
};
struct fd_bf16_halves {
    static __device__ __forceinline__ float low(uint32_t pair) { return fd_from_bits32(pair << 16); }
    static __device__ __forceinline__ float high(uint32_t pair) { return fd_from_bits32(pair & 0xffff0000u); }
};

template <class HALVES> struct fd_lane_halves8 : fd_format_shape<1, 4, 128, 0> {
    struct unit {
        uint4 pairs;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t, int lane) {
        return {row + lane * 16, row};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {fd_fetch<uint4, READS>(c.own + at * 128)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int, int, uint32_t, float (&w)[8]) {
        const uint32_t pairs[4] = {u.pairs.x, u.pairs.y, u.pairs.z, u.pairs.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[2 * i] = HALVES::low(pairs[i]);
            w[2 * i + 1] = HALVES::high(pairs[i]);
        }
    }
};

template <class HALVES> struct fd_lane_halves2 : fd_format_shape<1, 1, 128, 0> {
    struct unit {
        uint32_t pair;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t, int lane) {
        return {row + lane * 4, row};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {fd_fetch<uint32_t, READS>(c.own + at * 128)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int, int, uint32_t, float (&w)[2]) {
        w[0] = HALVES::low(u.pair);
        w[1] = HALVES::high(u.pair);
    }
};

template <> struct fd_lane_format<FD_F16, 8> : fd_lane_halves8<fd_f16_halves> {};
template <> struct fd_lane_format<FD_F16, 2> : fd_lane_halves2<fd_f16_halves> {};
template <> struct fd_lane_format<FD_BF16, 8> : fd_lane_halves8<fd_bf16_halves> {};
template <> struct fd_lane_format<FD_BF16, 2> : fd_lane_halves2<fd_bf16_halves> {};

/* d·q */
template <> struct fd_lane_format<FD_Q8_0, 8> : fd_format_shape<2, 6, 128, 8> {
    static constexpr bool fused = true;
    static constexpr uint32_t fused_bits = FD_2_15_BITS;
    struct unit {
        uint4 q;
        uint2 d; /* of the unit's four blocks */
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t scale_offset, int lane) {
        return {row + lane * 16, row + scale_offset};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {fd_fetch<uint4, READS>(c.own + at * 128), fd_fetch<uint2, READS>(c.shared + at * 8)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int group, int lane, uint32_t magic, float (&w)[8]) {
        const uint32_t pair = group == 0 ? u.d.x : u.d.y;
        const float d = fd_half_to_float((uint16_t)(lane < 4 ? pair : pair >> 16));
        /* int8 with its sign bit turned is the unsigned byte q + 128. */
        const uint32_t low = (group == 0 ? u.q.x : u.q.z) ^ 0x80808080u,
                       high = (group == 0 ? u.q.y : u.q.w) ^ 0x80808080u;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = d * fd_byte<128>(low, i, magic);
            w[i + 4] = d * fd_byte<128>(high, i, magic);
        }
    }
    static __device__ __forceinline__ void decode_fused(const unit &u, int group, int lane, uint32_t, uint32_t magic,
                                                        float (&w)[8]) {
        const uint32_t pair = group == 0 ? u.d.x : u.d.y;
        const float d = fd_half_to_float((uint16_t)(lane < 4 ? pair : pair >> 16)), offset = d * -(32768.0f + 128.0f);
        const uint32_t low = (group == 0 ? u.q.x : u.q.z) ^ 0x80808080u,
                       high = (group == 0 ? u.q.y : u.q.w) ^ 0x80808080u;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = fmaf(d, fd_byte_of_2_15(low, i, magic), offset);
            w[i + 4] = fmaf(d, fd_byte_of_2_15(high, i, magic), offset);
        }
    }
};

/* d·(q − 8) */
template <> struct fd_lane_format<FD_Q4_0, 8> : fd_format_shape<2, 4, 64, 8> {
    static constexpr bool fused = true;
    static constexpr uint32_t fused_bits = FD_2_7_BITS;
    struct unit {
        uint2 q;
        uint2 d; /* of the unit's four blocks */
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t scale_offset, int lane) {
        return {row + lane * 8, row + scale_offset};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {fd_fetch<uint2, READS>(c.own + at * 64), fd_fetch<uint2, READS>(c.shared + at * 8)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int group, int lane, uint32_t magic, float (&w)[8]) {
        const uint32_t pair = group == 0 ? u.d.x : u.d.y;
        const float d = fd_half_to_float((uint16_t)(lane < 4 ? pair : pair >> 16));
        const uint32_t q = group == 0 ? u.q.x : u.q.y;
        const uint32_t low = q & 0x0f0f0f0fu, high = q >> 4 & 0x0f0f0f0fu;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = d * fd_byte<8>(low, i, magic);
            w[i + 4] = d * fd_byte<8>(high, i, magic);
        }
    }
    static __device__ __forceinline__ void decode_fused(const unit &u, int group, int lane, uint32_t, uint32_t magic,
                                                        float (&w)[8]) {
        const uint32_t pair = group == 0 ? u.d.x : u.d.y;
        const float d = fd_half_to_float((uint16_t)(lane < 4 ? pair : pair >> 16)), offset = d * -(128.0f + 8.0f);
        const uint32_t q = group == 0 ? u.q.x : u.q.y;
        const uint32_t low = q & 0x0f0f0f0fu, high = q >> 4 & 0x0f0f0f0fu;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = fmaf(d, fd_byte_of_2_7(low, i, magic), offset);
            w[i + 4] = fmaf(d, fd_byte_of_2_7(high, i, magic), offset);
        }
    }
};

/* Bits 0-3 to bit 4 of bytes 0-3. */
__device__ __forceinline__ uint32_t fd_fifth_bits(uint32_t bits) {
    return (bits & 15) * 0x02040810u & 0x10101010u;
}

/* d·(q − 16) */
template <> struct fd_lane_format<FD_Q5_0, 8> : fd_format_shape<2, 5, 80, 8> {
    static constexpr bool fused = true;
    static constexpr uint32_t fused_bits = FD_2_7_BITS;
    struct unit {
        uint2 q;
        uint2 d; /* of the unit's four blocks */
        uint16_t high;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t scale_offset, int lane) {
        return {row + lane * 8, row + scale_offset};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int lane) {
        const uint8_t *own = c.own + at * 80;
        return {fd_fetch<uint2, READS>(own), fd_fetch<uint2, READS>(c.shared + at * 8),
                fd_fetch<uint16_t, READS>(own - lane * 6 + 64)};
    }
    static __device__ __forceinline__ float scale_of(const unit &u, int group, int lane) {
        const uint32_t pair = group == 0 ? u.d.x : u.d.y;
        return fd_half_to_float((uint16_t)(lane < 4 ? pair : pair >> 16));
    }
    /* q of elements 0-3 and 4-7 as bytes */
    static __device__ __forceinline__ uint2 bytes_of(const unit &u, int group) {
        const uint32_t q = group == 0 ? u.q.x : u.q.y, high = (uint32_t)u.high >> group * 8;
        return {(q & 0x0f0f0f0fu) | fd_fifth_bits(high), (q >> 4 & 0x0f0f0f0fu) | fd_fifth_bits(high >> 4)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int group, int lane, uint32_t magic, float (&w)[8]) {
        const float d = scale_of(u, group, lane);
        const uint2 q = bytes_of(u, group);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = d * fd_byte<16>(q.x, i, magic);
            w[i + 4] = d * fd_byte<16>(q.y, i, magic);
        }
    }
    static __device__ __forceinline__ void decode_fused(const unit &u, int group, int lane, uint32_t, uint32_t magic,
                                                        float (&w)[8]) {
        const float d = scale_of(u, group, lane), offset = d * -(128.0f + 16.0f);
        const uint2 q = bytes_of(u, group);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = fmaf(d, fd_byte_of_2_7(q.x, i, magic), offset);
            w[i + 4] = fmaf(d, fd_byte_of_2_7(q.y, i, magic), offset);
        }
    }
};

/* d·scale·power and dmin·min of the first or second block of a group, from Q4_K's 16 bytes. Four scales and mins at a time as
 * bytes: blocks 0-3 are the low six bits of their words, 4-7 are put together. */
__device__ __forceinline__ void fd_scale_and_min(const uint4 &head, int group, bool first, uint32_t magic, float power,
                                                 float *scale, float *min) {
    const uint32_t scales = group < 2 ? head.y & 0x3f3f3f3fu : (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
    const uint32_t mins = group < 2 ? head.z & 0x3f3f3f3fu : (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);
    const int shift = first ? 0 : 8;
    *scale = fd_low_half(head.x) * power * fd_byte<0>(scales >> shift, group % 2 * 2, magic);
    *min = fd_high_half(head.x) * fd_byte<0>(mins >> shift, group % 2 * 2, magic);
}

/* (d·scale)·q − dmin·min; a group of 64 has two scales, the first for lanes 0 to 3. */
template <> struct fd_lane_format<FD_Q4_K, 8> : fd_format_shape<4, 8, 144, 144> {
    struct unit {
        uint4 head; /* d and dmin; scales and mins */
        uint4 q;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t, int lane) {
        return {row + 16 + lane * 16, row};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {fd_fetch<uint4, READS>(c.shared + at * 144), fd_fetch<uint4, READS>(c.own + at * 144)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int group, int lane, uint32_t magic, float (&w)[8]) {
        float low, min;
        fd_scale_and_min(u.head, group, lane < 4, magic, 0x1p24f, &low, &min);
        /* A nibble in the last bits of a binary16 is q·2^-24, four bits further up q·2^-20: one conversion gives
         * binary32, and the scale takes the power of two, exactly. */
        const uint32_t q = group == 0 ? u.q.x : group == 1 ? u.q.y : group == 2 ? u.q.z : u.q.w, odd = q >> 8;
        const uint32_t even_low = q & 0x000f000fu, odd_low = odd & 0x000f000fu;
        const uint32_t even_high = q & 0x00f000f0u, odd_high = odd & 0x00f000f0u;
        const float high = low * 0x1p-4f;
        w[0] = fmaf(low, fd_low_half(even_low), -min);
        w[1] = fmaf(low, fd_low_half(odd_low), -min);
        w[2] = fmaf(low, fd_high_half(even_low), -min);
        w[3] = fmaf(low, fd_high_half(odd_low), -min);
        w[4] = fmaf(high, fd_low_half(even_high), -min);
        w[5] = fmaf(high, fd_low_half(odd_high), -min);
        w[6] = fmaf(high, fd_high_half(even_high), -min);
        w[7] = fmaf(high, fd_high_half(odd_high), -min);
    }
};

/* (d·scale)·(q − 32); a group of 64 has four scales, one for two lanes. */
template <> struct fd_lane_format<FD_Q6_K, 8> : fd_format_shape<4, 8, 208, 2> {
    static constexpr bool fused = true;
    static constexpr uint32_t fused_bits = FD_2_7_BITS;
    struct unit {
        uint4 low;
        uint2 high;
        uint32_t scales;
        uint16_t d;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t scale_offset, int lane) {
        return {row + lane * 16, row + scale_offset};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int lane) {
        const uint8_t *own = c.own + at * 208;
        return {fd_fetch<uint4, READS>(own), fd_fetch<uint2, READS>(own - lane * 8 + 128),
                fd_fetch<uint32_t, READS>(own - lane * 16 + lane / 2 * 4 + 192),
                fd_fetch<uint16_t, READS>(c.shared + at * 2)};
    }
    static __device__ __forceinline__ float scale_of(const unit &u, int group, uint32_t magic) {
        return fd_half_to_float(u.d) * fd_byte<128>(u.scales ^ 0x80808080u, group, magic);
    }
    /* q of elements 0-3 and 4-7 as bytes */
    static __device__ __forceinline__ uint2 bytes_of(const unit &u, int group) {
        const uint32_t q = group == 0 ? u.low.x : group == 1 ? u.low.y : group == 2 ? u.low.z : u.low.w;
        const uint32_t bits = (group < 2 ? u.high.x : u.high.y) >> group % 2 * 4;
        return {(q & 0x0f0f0f0fu) | (bits << 4 & 0x30303030u), (q >> 4 & 0x0f0f0f0fu) | (bits << 2 & 0x30303030u)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int group, int, uint32_t magic, float (&w)[8]) {
        const float scale = scale_of(u, group, magic);
        const uint2 q = bytes_of(u, group);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = scale * fd_byte<32>(q.x, i, magic);
            w[i + 4] = scale * fd_byte<32>(q.y, i, magic);
        }
    }
    /* scale has 19 significant bits and 160 three: scale·160 is exact. */
    static __device__ __forceinline__ void decode_fused(const unit &u, int group, int, uint32_t magic,
                                                        uint32_t fused_magic, float (&w)[8]) {
        const float scale = scale_of(u, group, magic), offset = scale * -(128.0f + 32.0f);
        const uint2 q = bytes_of(u, group);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[i] = fmaf(scale, fd_byte_of_2_7(q.x, i, fused_magic), offset);
            w[i + 4] = fmaf(scale, fd_byte_of_2_7(q.y, i, fused_magic), offset);
        }
    }
};

/* Calls `launch(format)` with the struct of `dtype` for 8 partials a lane. */
template <class Launch> static fd_code fd_with_format(uint32_t dtype, fd_error *err, Launch launch) {
    switch (dtype) {
    case FD_F32: return launch(fd_lane_format<FD_F32, 8>());
    case FD_F16: return launch(fd_lane_format<FD_F16, 8>());
    case FD_BF16: return launch(fd_lane_format<FD_BF16, 8>());
    case FD_Q8_0: return launch(fd_lane_format<FD_Q8_0, 8>());
    case FD_Q4_0: return launch(fd_lane_format<FD_Q4_0, 8>());
    case FD_Q5_0: return launch(fd_lane_format<FD_Q5_0, 8>());
    case FD_Q4_K: return launch(fd_lane_format<FD_Q4_K, 8>());
    case FD_Q6_K: return launch(fd_lane_format<FD_Q6_K, 8>());
    default: return fd_fail(err, FD_ERR_UNSUPPORTED, "weight type %u: no kernel reads it", (unsigned)dtype);
    }
}

#endif

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
 * Where `fused` is true, decode_fused takes an instruction less a weight: the quant with its offset m = 2^k + q stays
 * in, and w = fma(d, m, -d·2^k), whose addend is exact too. It has decode's values, but +0 where that has -0, and NaN
 * where a scale is infinite. The first shows in a dot only when the dot is zero, the second only when it is NaN: who
 * uses it does those rows again. */
#ifndef FD_KERNELS_FORMATS_CUH
#define FD_KERNELS_FORMATS_CUH

#include "kernels/format_parts.cuh"
#include "kernels/formats_k.cuh"

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

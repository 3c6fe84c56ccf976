/* How a lane reads its share of a weight row (kernels/formats/pack.h) and turns it into binary32, one format a struct,
 * fd_lane_format.
 *
 * A row is read by 64 / P lanes; lane l owns partials P l … P l + P - 1 of every group of 64, so the products it adds
 * are its own alone. A cursor points at the lane's share of a row's first unit, `load` fetches a unit (`groups` groups)
 * into registers, `decode` gives the P weights of one of its groups.
 *
 * The values are bit-equal to model/gguf/quant.h's. Scales are f16 (11 significant bits): d·q, and Q4_K's and Q6_K's
 * d·scale (6 and 8 bits) and (d·scale)·q (at most 24 bits in all) are exact in binary32, so neither their order nor a
 * fused multiply-add can change a bit; only the addition of a minimum rounds, once, here inside an fma of exact products.
 * Formats that come as scales and codes (kernels/formats/codes.cuh) have the CPU's one product.
 *
 * Where `fused` is true, decode_fused takes an instruction less a weight: the quant with its offset m = 2^k + q stays
 * in, and w = fma(d, m, -d·2^k), whose addend is exact too. It has decode's values, but +0 where that has -0, and NaN
 * where a scale is infinite. The first shows in a dot only when the dot is zero, the second only when it is NaN: its
 * users compute those rows again. */
#ifndef FD_KERNELS_FORMATS_FORMATS_CUH
#define FD_KERNELS_FORMATS_FORMATS_CUH

#include "kernels/formats/parts.cuh"
#include "kernels/formats/k_quants.cuh"
#include "kernels/formats/codes.cuh"
#include "kernels/formats/pack.h"

/* A load's words in order. */
__device__ __forceinline__ void fd_words(uint32_t from, uint32_t *to) {
    to[0] = from;
}
__device__ __forceinline__ void fd_words(const uint4 &from, uint32_t *to) {
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
}

/* Floats: a unit is the lane's P elements of one group. */
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
        uint32_t bits[8];
        fd_words(u.first, bits);
        fd_words(u.second, bits + 4);
#pragma unroll
        for (int i = 0; i < 8; i++) w[i] = fd_from_bits32(bits[i]);
    }
};

/* Those where this is one load. */
template <class Load, int P> struct fd_float_format : fd_format_shape<1, sizeof(Load) / 4, 64 / P * sizeof(Load), 0> {
    struct unit {
        Load words;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t, int lane) {
        return {row + lane * (int)sizeof(Load), row};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {fd_fetch<Load, READS>(c.own + at * fd_float_format::own_step)};
    }
};

template <> struct fd_lane_format<FD_F32, 2> : fd_float_format<uint2, 2> {
    static __device__ __forceinline__ void decode(const unit &u, int, int, uint32_t, float (&w)[2]) {
        w[0] = fd_from_bits32(u.words.x);
        w[1] = fd_from_bits32(u.words.y);
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

template <class Halves, class Load, int P> struct fd_lane_halves : fd_float_format<Load, P> {
    using unit = typename fd_float_format<Load, P>::unit;
    static __device__ __forceinline__ void decode(const unit &u, int, int, uint32_t, float (&w)[P]) {
        uint32_t pairs[P / 2];
        fd_words(u.words, pairs);
#pragma unroll
        for (int i = 0; i < P / 2; i++) {
            w[2 * i] = Halves::low(pairs[i]);
            w[2 * i + 1] = Halves::high(pairs[i]);
        }
    }
};

template <> struct fd_lane_format<FD_F16, 8> : fd_lane_halves<fd_f16_halves, uint4, 8> {};
template <> struct fd_lane_format<FD_F16, 2> : fd_lane_halves<fd_f16_halves, uint32_t, 2> {};
template <> struct fd_lane_format<FD_BF16, 8> : fd_lane_halves<fd_bf16_halves, uint4, 8> {};
template <> struct fd_lane_format<FD_BF16, 2> : fd_lane_halves<fd_bf16_halves, uint32_t, 2> {};

/* Types in blocks of 32, of which a group has two and a unit four, d in a plane: a lane loads its quants, STEP bytes
 * from unit to unit, as a `Load`, and all four d. */
template <class Load, int WORDS, int STEP> struct fd_block_quants : fd_format_shape<2, WORDS, STEP, 8> {
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t scale_offset, int lane) {
        return {row + lane * (int)sizeof(Load), row + scale_offset};
    }
    template <class Unit> static __device__ __forceinline__ float scale(const Unit &u, int group, int lane, uint32_t) {
        const uint32_t pair = fd_word(u.d, group);
        return fd_half_to_float((uint16_t)(lane < 4 ? pair : pair >> 16));
    }
};

/* d·q: int8 with its sign bit turned is the unsigned byte q + 128. */
struct fd_q8_0_quants : fd_block_quants<uint4, 6, 128> {
    struct unit {
        uint4 q;
        uint2 d;
    };
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {fd_fetch<uint4, READS>(c.own + at * 128), fd_fetch<uint2, READS>(c.shared + at * 8)};
    }
    static __device__ __forceinline__ fd_bytes<8> bytes(const unit &u, int group, int) {
        return {{fd_word(u.q, 2 * group) ^ 0x80808080u, fd_word(u.q, 2 * group + 1) ^ 0x80808080u}};
    }
};

/* d·(q − 8) */
struct fd_q4_0_quants : fd_block_quants<uint2, 4, 64> {
    struct unit {
        uint2 q;
        uint2 d;
    };
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {fd_fetch<uint2, READS>(c.own + at * 64), fd_fetch<uint2, READS>(c.shared + at * 8)};
    }
    static __device__ __forceinline__ fd_bytes<8> bytes(const unit &u, int group, int) {
        const uint32_t q = fd_word(u.q, group);
        return {{q & 0x0f0f0f0fu, q >> 4 & 0x0f0f0f0fu}};
    }
};

/* d·(q − 16) */
struct fd_q5_0_quants : fd_block_quants<uint2, 5, 80> {
    struct unit {
        uint2 q;
        uint2 d;
        uint16_t high;
    };
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int lane) {
        const uint8_t *own = c.own + at * 80;
        return {fd_fetch<uint2, READS>(own), fd_fetch<uint2, READS>(c.shared + at * 8),
                fd_fetch<uint16_t, READS>(own - lane * 6 + 64)};
    }
    static __device__ __forceinline__ fd_bytes<8> bytes(const unit &u, int group, int) {
        const uint32_t q = fd_word(u.q, group), high = (uint32_t)u.high >> group * 8;
        return {{(q & 0x0f0f0f0fu) | fd_fifth_bits(high), (q >> 4 & 0x0f0f0f0fu) | fd_fifth_bits(high >> 4)}};
    }
};

/* d·q + m; the blocks' d and m before the quants. A lane loads those of its block of each group. */
template <int STEP, int WORDS> struct fd_block_minima : fd_format_shape<2, WORDS, STEP, STEP> {
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t, int lane) {
        return {row + 16 + lane * 8, row};
    }
    template <fd_reads READS>
    static __device__ __forceinline__ uint32_t head(const fd_cursor &c, int at, int group, int lane) {
        return fd_fetch<uint32_t, READS>(c.shared + at * STEP + (2 * group + lane / 4) * 4);
    }
    template <class Unit>
    static __device__ __forceinline__ void affine(const Unit &u, int group, int, uint32_t, float *scale,
                                                  float *offset) {
        *scale = fd_low_half(u.head[group]);
        *offset = fd_high_half(u.head[group]);
    }
};

struct fd_q4_1_quants : fd_block_minima<80, 4> {
    struct unit {
        uint2 q;
        uint32_t head[2]; /* d, m of the two groups */
    };
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int lane) {
        return {fd_fetch<uint2, READS>(c.own + at * 80), {head<READS>(c, at, 0, lane), head<READS>(c, at, 1, lane)}};
    }
    static __device__ __forceinline__ fd_bytes<8> bytes(const unit &u, int group, int) {
        const uint32_t q = fd_word(u.q, group);
        return {{q & 0x0f0f0f0fu, q >> 4 & 0x0f0f0f0fu}};
    }
};

struct fd_q5_1_quants : fd_block_minima<96, 5> {
    struct unit {
        uint2 q;
        uint32_t head[2];
        uint16_t high;
    };
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int lane) {
        return {fd_fetch<uint2, READS>(c.own + at * 96),
                {head<READS>(c, at, 0, lane), head<READS>(c, at, 1, lane)},
                fd_fetch<uint16_t, READS>(c.shared + at * 96 + 80 + lane * 2)};
    }
    static __device__ __forceinline__ fd_bytes<8> bytes(const unit &u, int group, int) {
        const uint32_t q = fd_word(u.q, group), high = (uint32_t)u.high >> group * 8;
        return {{(q & 0x0f0f0f0fu) | fd_fifth_bits(high), (q >> 4 & 0x0f0f0f0fu) | fd_fifth_bits(high >> 4)}};
    }
};

template <> struct fd_lane_format<FD_Q4_1, 8> : fd_affine_format<fd_q4_1_quants, 8> {};
template <> struct fd_lane_format<FD_Q5_1, 8> : fd_affine_format<fd_q5_1_quants, 8> {};
template <> struct fd_lane_format<FD_Q8_0, 8> : fd_centred_format<fd_q8_0_quants, 8, 128, 15> {};
template <> struct fd_lane_format<FD_Q4_0, 8> : fd_centred_format<fd_q4_0_quants, 8, 8, 7> {};
template <> struct fd_lane_format<FD_Q5_0, 8> : fd_centred_format<fd_q5_0_quants, 8, 16, 7> {};

/* Calls `launch(format)` with the struct of `dtype` for P partials a lane (2: kernels/formats/pair.cuh). */
template <int P = 8, class Launch> static fd_code fd_with_format(uint32_t dtype, fd_error *err, Launch launch) {
    switch (fd_packed_type(dtype)) {
    case FD_F32: return launch(fd_lane_format<FD_F32, P>());
    case FD_F16: return launch(fd_lane_format<FD_F16, P>());
    case FD_BF16: return launch(fd_lane_format<FD_BF16, P>());
    case FD_Q8_0: return launch(fd_lane_format<FD_Q8_0, P>());
    case FD_Q4_0: return launch(fd_lane_format<FD_Q4_0, P>());
    case FD_Q4_1: return launch(fd_lane_format<FD_Q4_1, P>());
    case FD_Q5_0: return launch(fd_lane_format<FD_Q5_0, P>());
    case FD_Q5_1: return launch(fd_lane_format<FD_Q5_1, P>());
    case FD_Q2_K: return launch(fd_lane_format<FD_Q2_K, P>());
    case FD_Q3_K: return launch(fd_lane_format<FD_Q3_K, P>());
    case FD_Q4_K: return launch(fd_lane_format<FD_Q4_K, P>());
    case FD_Q5_K: return launch(fd_lane_format<FD_Q5_K, P>());
    case FD_Q6_K: return launch(fd_lane_format<FD_Q6_K, P>());
    case FD_IQ4_NL: return launch(fd_lane_format<FD_IQ4_NL, P>());
    case FD_MXFP4: return launch(fd_lane_format<FD_MXFP4, P>());
    case FD_NVFP4: return launch(fd_lane_format<FD_NVFP4, P>());
    case FD_PACKED_CODES: return launch(fd_lane_format<FD_PACKED_CODES, P>());
    default: return fd_fail(err, FD_ERR_UNSUPPORTED, "weight type %u: no kernel reads it", (unsigned)dtype);
    }
}

#endif

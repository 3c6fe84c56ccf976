/* The formats in blocks of 256, eight lanes a row; see kernels/formats/formats.cuh, which includes this. */
#ifndef FD_KERNELS_FORMATS_K_QUANTS_CUH
#define FD_KERNELS_FORMATS_K_QUANTS_CUH

#include "kernels/formats/parts.cuh"

/* d·scale·power and dmin·min of the first or second block of a group, from Q4_K's 16 bytes. Four scales and mins at a
 * time as bytes: blocks 0-3 are the low six bits of their words, 4-7 are put together. */
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
        const uint32_t q = fd_word(u.q, group), odd = q >> 8;
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
struct fd_q6_k_quants : fd_format_shape<4, 8, 208, 2> {
    struct unit {
        uint4 low;
        uint2 high;
        uint32_t scales; /* int8, of the four groups */
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
    static __device__ __forceinline__ float scale(const unit &u, int group, int, uint32_t magic) {
        return fd_half_to_float(u.d) * fd_byte<128>(u.scales ^ 0x80808080u, group, magic);
    }
    /* Of elements 0-3 in bits 0-1 of bytes 0-3, of 4-7 in bits 2-3. */
    static __device__ __forceinline__ uint32_t high_bits(const unit &u, int group) {
        return fd_word(u.high, group / 2) >> group % 2 * 4;
    }
    static __device__ __forceinline__ fd_bytes<8> bytes(const unit &u, int group, int) {
        const uint32_t q = fd_word(u.low, group), bits = high_bits(u, group);
        return {{(q & 0x0f0f0f0fu) | (bits << 4 & 0x30303030u), (q >> 4 & 0x0f0f0f0fu) | (bits << 2 & 0x30303030u)}};
    }
};

/* scale has 19 significant bits and 2^7 + 32 three: the addend of decode_fused is exact. */
template <> struct fd_lane_format<FD_Q6_K, 8> : fd_centred_format<fd_q6_k_quants, 8, 32, 7> {};

#endif

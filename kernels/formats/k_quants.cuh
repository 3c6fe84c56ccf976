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

/* (d·scale)·q − dmin·min with five bits. */
struct fd_q5_k_quants : fd_format_shape<4, 9, 176, 176> {
    struct unit {
        uint4 head;
        uint4 q;
        uint32_t high;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t, int lane) {
        return {row + 16 + lane * 16, row};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int lane) {
        const uint8_t *head = c.shared + at * 176;
        return {fd_fetch<uint4, READS>(head), fd_fetch<uint4, READS>(c.own + at * 176),
                fd_fetch<uint32_t, READS>(head + 144 + lane * 4)};
    }
    static __device__ __forceinline__ void affine(const unit &u, int group, int lane, uint32_t magic, float *scale,
                                                  float *offset) {
        float min;
        fd_scale_and_min(u.head, group, lane < 4, magic, 1.0f, scale, &min);
        *offset = -min;
    }
    static __device__ __forceinline__ fd_bytes<8> bytes(const unit &u, int group, int) {
        const uint32_t q = fd_word(u.q, group), high = u.high >> group * 8;
        return {{(q & 0x0f0f0f0fu) | fd_fifth_bits(high), (q >> 4 & 0x0f0f0f0fu) | fd_fifth_bits(high >> 4)}};
    }
};
template <> struct fd_lane_format<FD_Q5_K, 8> : fd_affine_format<fd_q5_k_quants, 8> {};

/* Bit pairs of a group: of elements 0-3 in bits 0-1 of bytes 0-3, of 4-7 in bits 2-3. */
__device__ __forceinline__ uint32_t fd_pairs_of_group(const uint2 &words, int group) {
    return fd_word(words, group / 2) >> group % 2 * 4;
}

/* (d·scale)·q − dmin·min; a group of 64 has four bytes of scales and mins, one for two lanes. */
struct fd_q2_k_quants : fd_format_shape<4, 4, 96, 96> {
    struct unit {
        uint2 pairs;
        uint32_t scales; /* of the four groups: scale in the low nibble, min in the high one */
        uint32_t d;      /* and dmin */
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t, int lane) {
        return {row + lane * 8, row};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int lane) {
        const uint8_t *head = c.shared + at * 96;
        return {fd_fetch<uint2, READS>(c.own + at * 96), fd_fetch<uint32_t, READS>(head + 64 + lane / 2 * 4),
                fd_fetch<uint32_t, READS>(head + 80)};
    }
    static __device__ __forceinline__ void affine(const unit &u, int group, int, uint32_t magic, float *scale,
                                                  float *offset) {
        *scale = fd_low_half(u.d) * fd_byte<0>(u.scales & 0x0f0f0f0fu, group, magic);
        *offset = -(fd_high_half(u.d) * fd_byte<0>(u.scales >> 4 & 0x0f0f0f0fu, group, magic));
    }
    static __device__ __forceinline__ fd_bytes<8> bytes(const unit &u, int group, int) {
        const uint32_t pairs = fd_pairs_of_group(u.pairs, group);
        return {{pairs & 0x03030303u, pairs >> 2 & 0x03030303u}};
    }
};
template <> struct fd_lane_format<FD_Q2_K, 8> : fd_affine_format<fd_q2_k_quants, 8> {};

/* (d·scale)·(q − 4); scales are placed as Q6_K's. */
struct fd_q3_k_quants : fd_format_shape<4, 5, 112, 2> {
    struct unit {
        uint2 pairs;
        uint32_t high;   /* a byte a group */
        uint32_t scales; /* int8, of the four groups */
        uint16_t d;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t scale_offset, int lane) {
        return {row + lane * 8, row + scale_offset};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int lane) {
        const uint8_t *own = c.own + at * 112;
        return {fd_fetch<uint2, READS>(own), fd_fetch<uint32_t, READS>(own - lane * 4 + 64),
                fd_fetch<uint32_t, READS>(own - lane * 8 + lane / 2 * 4 + 96),
                fd_fetch<uint16_t, READS>(c.shared + at * 2)};
    }
    static __device__ __forceinline__ float scale(const unit &u, int group, int, uint32_t magic) {
        return fd_half_to_float(u.d) * fd_byte<128>(u.scales ^ 0x80808080u, group, magic);
    }
    static __device__ __forceinline__ fd_bytes<8> bytes(const unit &u, int group, int) {
        const uint32_t pairs = fd_pairs_of_group(u.pairs, group), high = u.high >> group * 8;
        return {{(pairs & 0x03030303u) | fd_fifth_bits(high) >> 2,
                 (pairs >> 2 & 0x03030303u) | fd_fifth_bits(high >> 4) >> 2}};
    }
};

/* scale has 17 significant bits and 2^7 + 4 six: the addend of decode_fused is exact. */
template <> struct fd_lane_format<FD_Q3_K, 8> : fd_centred_format<fd_q3_k_quants, 8, 4, 7> {};

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
    static __device__ __forceinline__ fd_bytes<8> bytes(const unit &u, int group, int) {
        const uint32_t q = fd_word(u.low, group), bits = fd_pairs_of_group(u.high, group);
        return {{(q & 0x0f0f0f0fu) | (bits << 4 & 0x30303030u), (q >> 4 & 0x0f0f0f0fu) | (bits << 2 & 0x30303030u)}};
    }
};

/* scale has 19 significant bits and 2^7 + 32 three: the addend of decode_fused is exact. */
template <> struct fd_lane_format<FD_Q6_K, 8> : fd_centred_format<fd_q6_k_quants, 8, 32, 7> {};

#endif

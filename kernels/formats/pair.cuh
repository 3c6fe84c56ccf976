/* The quantised formats of kernels/formats/formats.cuh for 32 lanes a row: lane l owns partials 2l and 2l + 1, the pair
 * number l % 4 of what lane l / 4 of eight owns. Layouts and values are the same. */
#ifndef FD_KERNELS_FORMATS_PAIR_CUH
#define FD_KERNELS_FORMATS_PAIR_CUH

#include "kernels/formats/formats.cuh"

/* All four lanes read the words that lane l / 4 of eight reads, whole, and take their pair out of them. */
template <class Eight> struct fd_quarter_format : Eight {
    using unit = typename Eight::unit;
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t scale_offset, int lane) {
        return Eight::begin(row, scale_offset, lane / 4);
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int lane) {
        return Eight::template load<READS>(c, at, lane / 4);
    }
    static __device__ __forceinline__ float scale(const unit &u, int group, int lane, uint32_t magic) {
        return Eight::scale(u, group, lane / 4, magic);
    }
};

/* The lane's pair of a word of nibbles starts at one of two bytes, and is the low nibbles, elements 0-3, or the high
 * ones, 4-7. */
__device__ __forceinline__ int fd_pair_bit(int lane) {
    return lane % 2 * 16;
}
__device__ __forceinline__ uint32_t fd_pair_nibbles(uint32_t word, int lane) {
    return word >> (fd_pair_bit(lane) + lane % 4 / 2 * 4) & 0x0f0fu;
}

/* d·q; a lane reads its own two bytes of each group. */
struct fd_q8_0_pair : fd_format_shape<2, 4, 128, 8> {
    struct unit {
        uint32_t q[2];
        uint2 d; /* of the unit's four blocks */
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t scale_offset, int lane) {
        return {row + lane / 4 * 16 + lane % 4 * 2, row + scale_offset};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {{fd_fetch<uint16_t, READS>(c.own + at * 128), fd_fetch<uint16_t, READS>(c.own + at * 128 + 8)},
                fd_fetch<uint2, READS>(c.shared + at * 8)};
    }
    static __device__ __forceinline__ float scale(const unit &u, int group, int lane, uint32_t magic) {
        return fd_q8_0_quants::scale(u, group, lane / 4, magic);
    }
    static __device__ __forceinline__ fd_bytes<2> bytes(const unit &u, int group, int) {
        return {{u.q[group] ^ 0x8080u}};
    }
};

/* d·(q − 8) */
struct fd_q4_0_pair : fd_quarter_format<fd_q4_0_quants> {
    static __device__ __forceinline__ fd_bytes<2> bytes(const unit &u, int group, int lane) {
        return {{fd_pair_nibbles(fd_word(u.q, group), lane)}};
    }
};

/* d·(q − 16) */
struct fd_q5_0_pair : fd_quarter_format<fd_q5_0_quants> {
    static __device__ __forceinline__ fd_bytes<2> bytes(const unit &u, int group, int lane) {
        const uint32_t high = (uint32_t)u.high >> (group * 8 + lane % 4 * 2);
        return {{fd_pair_nibbles(fd_word(u.q, group), lane) | fd_fifth_bits(high & 3)}};
    }
};

/* (d·scale)·(q − 32) */
struct fd_q6_k_pair : fd_quarter_format<fd_q6_k_quants> {
    static __device__ __forceinline__ fd_bytes<2> bytes(const unit &u, int group, int lane) {
        const uint32_t q = fd_word(u.low, group), bits = fd_pairs_of_group(u.high, group);
        return {{fd_pair_nibbles(q, lane) | (bits >> (fd_pair_bit(lane) + lane % 4 / 2 * 2) << 4 & 0x3030u)}};
    }
};

/* Formats without code of their own for the pair: it is taken out of the eight bytes. */
template <class Eight> struct fd_pair_of : fd_quarter_format<Eight> {
    using unit = typename Eight::unit;
    static __device__ __forceinline__ void affine(const unit &u, int group, int lane, uint32_t magic, float *scale,
                                                  float *offset) {
        Eight::affine(u, group, lane / 4, magic, scale, offset);
    }
    static __device__ __forceinline__ fd_bytes<2> bytes(const unit &u, int group, int lane) {
        const fd_bytes<8> eight = Eight::bytes(u, group, lane / 4);
        return {{(lane % 4 < 2 ? eight.word[0] : eight.word[1]) >> fd_pair_bit(lane)}};
    }
};

template <> struct fd_lane_format<FD_Q4_1, 2> : fd_affine_format<fd_pair_of<fd_q4_1_quants>, 2> {};
template <> struct fd_lane_format<FD_Q5_1, 2> : fd_affine_format<fd_pair_of<fd_q5_1_quants>, 2> {};
template <> struct fd_lane_format<FD_Q2_K, 2> : fd_affine_format<fd_pair_of<fd_q2_k_quants>, 2> {};
template <> struct fd_lane_format<FD_Q3_K, 2> : fd_centred_format<fd_pair_of<fd_q3_k_quants>, 2, 4> {};
template <> struct fd_lane_format<FD_Q5_K, 2> : fd_affine_format<fd_pair_of<fd_q5_k_quants>, 2> {};
template <> struct fd_lane_format<FD_IQ4_NL, 2> : fd_centred_format<fd_pair_of<fd_iq4_codes>, 2, 128> {};
template <> struct fd_lane_format<FD_MXFP4, 2> : fd_centred_format<fd_pair_of<fd_mxfp4_codes>, 2, 128> {};
template <> struct fd_lane_format<FD_NVFP4, 2> : fd_centred_format<fd_pair_of<fd_nvfp4_codes>, 2, 128> {};
template <> struct fd_lane_format<FD_PACKED_CODES, 2> : fd_centred_format<fd_pair_of<fd_byte_codes>, 2, 128> {};

template <> struct fd_lane_format<FD_Q8_0, 2> : fd_centred_format<fd_q8_0_pair, 2, 128, 15> {};
template <> struct fd_lane_format<FD_Q4_0, 2> : fd_centred_format<fd_q4_0_pair, 2, 8> {};
template <> struct fd_lane_format<FD_Q5_0, 2> : fd_centred_format<fd_q5_0_pair, 2, 16> {};
template <> struct fd_lane_format<FD_Q6_K, 2> : fd_centred_format<fd_q6_k_pair, 2, 32> {};

/* (d·scale)·q − dmin·min */
template <> struct fd_lane_format<FD_Q4_K, 2> : fd_quarter_format<fd_lane_format<FD_Q4_K, 8>> {
    static __device__ __forceinline__ void decode(const unit &u, int group, int lane, uint32_t magic, float (&w)[2]) {
        float scale, min;
        fd_scale_and_min(u.head, group, lane < 16, magic, 1.0f, &scale, &min);
        const uint32_t q = fd_pair_nibbles(fd_word(u.q, group), lane);
        w[0] = fmaf(scale, fd_byte<0>(q, 0, magic), -min);
        w[1] = fmaf(scale, fd_byte<0>(q, 1, magic), -min);
    }
};

#endif

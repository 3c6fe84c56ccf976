/* The quantised formats of kernels/formats.cuh for 32 lanes a row: lane l owns partials 2l and 2l + 1, so it reads a
 * quarter of what one of eight lanes reads. Four lanes share the words of one of those eight; `quarter` is which of its
 * four pairs the lane takes. Layouts and values are the same. */
#ifndef FD_KERNELS_FORMATS_PAIR_CUH
#define FD_KERNELS_FORMATS_PAIR_CUH

#include "kernels/formats.cuh"

/* Where the lane's pair starts in a word of nibbles: elements 0-3 are the low nibbles of bytes 0-3, 4-7 the high ones.
 */
__device__ __forceinline__ int fd_pair_byte(int lane) {
    return lane % 2 * 16;
}
__device__ __forceinline__ uint32_t fd_pair_nibbles(uint32_t word, int lane) {
    return word >> (fd_pair_byte(lane) + lane % 4 / 2 * 4) & 0x0f0fu;
}

/* d·q */
template <> struct fd_lane_format<FD_Q8_0, 2> : fd_format_shape<2, 4, 128, 8> {
    static constexpr bool fused = true;
    static constexpr uint32_t fused_bits = FD_2_15_BITS;
    struct unit {
        uint32_t q[2]; /* two bytes of each group */
        uint2 d;       /* of the unit's four blocks */
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t scale_offset, int lane) {
        return {row + lane / 4 * 16 + lane % 4 * 2, row + scale_offset};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {{fd_fetch<uint16_t, READS>(c.own + at * 128), fd_fetch<uint16_t, READS>(c.own + at * 128 + 8)},
                fd_fetch<uint2, READS>(c.shared + at * 8)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int group, int lane, uint32_t magic, float (&w)[2]) {
        const uint32_t pair = group == 0 ? u.d.x : u.d.y;
        const float d = fd_half_to_float((uint16_t)(lane < 16 ? pair : pair >> 16));
        const uint32_t q = u.q[group] ^ 0x8080u;
        w[0] = d * fd_byte<128>(q, 0, magic);
        w[1] = d * fd_byte<128>(q, 1, magic);
    }
    static __device__ __forceinline__ void decode_fused(const unit &u, int group, int lane, uint32_t, uint32_t magic,
                                                        float (&w)[2]) {
        const uint32_t pair = group == 0 ? u.d.x : u.d.y;
        const float d = fd_half_to_float((uint16_t)(lane < 16 ? pair : pair >> 16)), offset = d * -(32768.0f + 128.0f);
        const uint32_t q = u.q[group] ^ 0x8080u;
        w[0] = fmaf(d, fd_byte_of_2_15(q, 0, magic), offset);
        w[1] = fmaf(d, fd_byte_of_2_15(q, 1, magic), offset);
    }
};

/* d·(q − 8) */
template <> struct fd_lane_format<FD_Q4_0, 2> : fd_format_shape<2, 4, 64, 8> {
    struct unit {
        uint2 q, d;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t scale_offset, int lane) {
        return {row + lane / 4 * 8, row + scale_offset};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {fd_fetch<uint2, READS>(c.own + at * 64), fd_fetch<uint2, READS>(c.shared + at * 8)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int group, int lane, uint32_t magic, float (&w)[2]) {
        const uint32_t pair = group == 0 ? u.d.x : u.d.y;
        const float d = fd_half_to_float((uint16_t)(lane < 16 ? pair : pair >> 16));
        const uint32_t q = fd_pair_nibbles(group == 0 ? u.q.x : u.q.y, lane);
        w[0] = d * fd_byte<8>(q, 0, magic);
        w[1] = d * fd_byte<8>(q, 1, magic);
    }
};

/* d·(q − 16) */
template <> struct fd_lane_format<FD_Q5_0, 2> : fd_format_shape<2, 5, 80, 8> {
    struct unit {
        uint2 q, d;
        uint16_t high;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t scale_offset, int lane) {
        return {row + lane / 4 * 8, row + scale_offset};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int lane) {
        const uint8_t *own = c.own + at * 80;
        return {fd_fetch<uint2, READS>(own), fd_fetch<uint2, READS>(c.shared + at * 8),
                fd_fetch<uint16_t, READS>(own - lane / 4 * 6 + 64)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int group, int lane, uint32_t magic, float (&w)[2]) {
        const uint32_t pair = group == 0 ? u.d.x : u.d.y;
        const float d = fd_half_to_float((uint16_t)(lane < 16 ? pair : pair >> 16));
        const uint32_t high = (uint32_t)u.high >> (group * 8 + lane % 4 * 2);
        const uint32_t q = fd_pair_nibbles(group == 0 ? u.q.x : u.q.y, lane) | fd_fifth_bits(high & 3);
        w[0] = d * fd_byte<16>(q, 0, magic);
        w[1] = d * fd_byte<16>(q, 1, magic);
    }
};

/* (d·scale)·q − dmin·min */
template <> struct fd_lane_format<FD_Q4_K, 2> : fd_format_shape<4, 8, 144, 144> {
    struct unit {
        uint4 head, q;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t, int lane) {
        return {row + 16 + lane / 4 * 16, row};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int) {
        return {fd_fetch<uint4, READS>(c.shared + at * 144), fd_fetch<uint4, READS>(c.own + at * 144)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int group, int lane, uint32_t magic, float (&w)[2]) {
        float scale, min;
        fd_scale_and_min(u.head, group, lane < 16, magic, 1.0f, &scale, &min);
        const uint32_t word = group == 0 ? u.q.x : group == 1 ? u.q.y : group == 2 ? u.q.z : u.q.w;
        const uint32_t q = fd_pair_nibbles(word, lane);
        w[0] = fmaf(scale, fd_byte<0>(q, 0, magic), -min);
        w[1] = fmaf(scale, fd_byte<0>(q, 1, magic), -min);
    }
};

/* (d·scale)·(q − 32) */
template <> struct fd_lane_format<FD_Q6_K, 2> : fd_format_shape<4, 8, 208, 2> {
    struct unit {
        uint4 low;
        uint2 high;
        uint32_t scales;
        uint16_t d;
    };
    static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t scale_offset, int lane) {
        return {row + lane / 4 * 16, row + scale_offset};
    }
    template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int lane) {
        const uint8_t *own = c.own + at * 208;
        return {fd_fetch<uint4, READS>(own), fd_fetch<uint2, READS>(own - lane / 4 * 8 + 128),
                fd_fetch<uint32_t, READS>(own - lane / 4 * 16 + lane / 8 * 4 + 192),
                fd_fetch<uint16_t, READS>(c.shared + at * 2)};
    }
    static __device__ __forceinline__ void decode(const unit &u, int group, int lane, uint32_t magic, float (&w)[2]) {
        const float scale = fd_half_to_float(u.d) * fd_byte<128>(u.scales ^ 0x80808080u, group, magic);
        const uint32_t low = group == 0 ? u.low.x : group == 1 ? u.low.y : group == 2 ? u.low.z : u.low.w;
        const uint32_t bits = (group < 2 ? u.high.x : u.high.y) >> group % 2 * 4;
        const uint32_t q =
            fd_pair_nibbles(low, lane) | (bits >> (fd_pair_byte(lane) + lane % 4 / 2 * 2) << 4 & 0x3030u);
        w[0] = scale * fd_byte<32>(q, 0, magic);
        w[1] = scale * fd_byte<32>(q, 1, magic);
    }
};

#endif

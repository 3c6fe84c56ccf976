/* The formats whose values are a scale, in binary32, times an integer: code books' int8 as they are, and nibbles that
 * stand for 16 levels. Eight lanes a row; see kernels/formats/formats.cuh, which includes this. */
#ifndef FD_KERNELS_FORMATS_CODES_CUH
#define FD_KERNELS_FORMATS_CODES_CUH

#include "base/levels.h"
#include "kernels/formats/pack.h"
#include "kernels/formats/parts.cuh"

/* A unit of 128 elements begins with SCALES scales; Load is a lane's share of the rest. */
template <class Load, int SCALES> struct fd_scaled_codes {
    static constexpr int head = SCALES * 4, step = head + 8 * (int)sizeof(Load);
    struct shape : fd_format_shape<2, (int)sizeof(Load) / 4 + 2, step, step> {
        struct unit {
            Load q;
            uint32_t scales[2]; /* of the lane's elements of the two groups */
        };
        static __device__ __forceinline__ fd_cursor begin(const uint8_t *row, int64_t, int lane) {
            return {row + head + lane * (int)sizeof(Load), row};
        }
        template <fd_reads READS> static __device__ __forceinline__ unit load(const fd_cursor &c, int at, int lane) {
            const uint8_t *scales = c.shared + at * step + lane * SCALES / 16 * 4;
            return {fd_fetch<Load, READS>(c.own + at * step),
                    {fd_fetch<uint32_t, READS>(scales), fd_fetch<uint32_t, READS>(scales + head / 2)}};
        }
        static __device__ __forceinline__ float scale(const unit &u, int group, int, uint32_t) {
            return fd_from_bits32(u.scales[group]);
        }
    };
};

/* int8 with its sign bit turned is the unsigned byte q + 128. */
struct fd_byte_codes : fd_scaled_codes<uint4, 8>::shape {
    static __device__ __forceinline__ fd_bytes<8> bytes(const unit &u, int group, int) {
        return {{fd_word(u.q, 2 * group) ^ 0x80808080u, fd_word(u.q, 2 * group + 1) ^ 0x80808080u}};
    }
};

struct fd_iq4_levels {
    static constexpr int level[16] = {FD_IQ4_LEVELS};
};
struct fd_fp4_levels {
    static constexpr int level[16] = {FD_FP4_LEVELS};
};

constexpr uint32_t fd_level_word(const int *level) {
    return (uint32_t)(level[0] + 128) | (uint32_t)(level[1] + 128) << 8 | (uint32_t)(level[2] + 128) << 16 |
           (uint32_t)(level[3] + 128) << 24;
}

/* The table plus 128, four levels a word: a permutation of bytes looks up four elements in each half of it, a third one
 * takes the half that the code's highest bit says. */
template <class Levels> struct fd_level_table {
    static constexpr uint32_t first = fd_level_word(Levels::level), second = fd_level_word(Levels::level + 4);
    static constexpr uint32_t third = fd_level_word(Levels::level + 8), fourth = fd_level_word(Levels::level + 12);
    /* The levels of nibbles 0-3. */
    static __device__ __forceinline__ uint32_t look_up(uint32_t nibbles) {
        const uint32_t within = nibbles & 0x7777u, half = (nibbles & 0x8888u) >> 1 | 0x3210u;
        return __byte_perm(__byte_perm(first, second, within), __byte_perm(third, fourth, within), half);
    }
};

template <class Levels, int SCALES> struct fd_level_codes : fd_scaled_codes<uint2, SCALES>::shape {
    using unit = typename fd_scaled_codes<uint2, SCALES>::shape::unit;
    static __device__ __forceinline__ fd_bytes<8> bytes(const unit &u, int group, int) {
        const uint32_t q = fd_word(u.q, group);
        return {{fd_level_table<Levels>::look_up(q), fd_level_table<Levels>::look_up(q >> 16)}};
    }
};

using fd_iq4_codes = fd_level_codes<fd_iq4_levels, 4>;
using fd_mxfp4_codes = fd_level_codes<fd_fp4_levels, 4>;
using fd_nvfp4_codes = fd_level_codes<fd_fp4_levels, 8>;

template <> struct fd_lane_format<FD_PACKED_CODES, 8> : fd_centred_format<fd_byte_codes, 8, 128> {};
template <> struct fd_lane_format<FD_IQ4_NL, 8> : fd_centred_format<fd_iq4_codes, 8, 128> {};
template <> struct fd_lane_format<FD_MXFP4, 8> : fd_centred_format<fd_mxfp4_codes, 8, 128> {};
template <> struct fd_lane_format<FD_NVFP4, 8> : fd_centred_format<fd_nvfp4_codes, 8, 128> {};

#endif

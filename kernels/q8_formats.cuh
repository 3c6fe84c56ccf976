/* How the q8act kernels read packed weights (kernels/pack.h): as int8 in words of four, and scales.
 *
 * Of eight lanes that share a row lane l owns elements 8l … 8l + 7 of every group of 64: eight elements of each block
 * of 32 whose number has the parity l / 4, which is the number of the partial sum. So the four lanes of one parity hold
 * its blocks, and lane l % 4 holds elements 8(l % 4) … + 7 of each: what the tensor core instruction wants of thread l
 * % 4 of a row, too, because an integer dot may take the elements of a block in any order.
 *
 * `words` are a lane's of a unit; `ints` gives the two words of its block number j in the unit (block parity + 2j),
 * scaled by `factor`, which its scale is divided by: nibbles become signed bytes in place, and powers of two are
 * exact. */
#ifndef FD_KERNELS_Q8_FORMATS_CUH
#define FD_KERNELS_Q8_FORMATS_CUH

#include "base/dtype.h"
#include "kernels/device.cuh"
#include "numerics/q8act.h"

template <uint32_t DTYPE> struct q8_format;

/* Q8_0 and Q4_0: the scales of a unit's four blocks are 8 bytes of the row's plane. */
struct q8_plain_scales {
    static constexpr int blocks = 2; /* of one parity in a unit */
    static constexpr int halves = 1; /* scales a block */
    static constexpr bool minimum = false;
    static constexpr int head_words = 2;
    static __device__ __forceinline__ float scale_of(const uint32_t (&head)[2], int parity, int j, float factor) {
        return fd_half_to_float((uint16_t)(head[j] >> 16 * parity)) * factor;
    }
};

template <> struct q8_format<FD_Q8_0> : q8_plain_scales {
    static constexpr int words = 4, unit_bytes = 128;
    static __device__ __forceinline__ void ints(const uint32_t (&w)[4], int j, uint32_t &low, uint32_t &high) {
        low = w[2 * j];
        high = w[2 * j + 1];
    }
    static __device__ __forceinline__ float scale(const uint32_t (&head)[2], int parity, int j, int) {
        return scale_of(head, parity, j, 1.0f);
    }
    static __device__ __forceinline__ float min(const uint32_t (&)[2], int, int) { return 0.0f; }
};

/* (q − 8)·16: the nibble above zeros, its sign bit turned. */
template <> struct q8_format<FD_Q4_0> : q8_plain_scales {
    static constexpr int words = 2, unit_bytes = 64;
    static __device__ __forceinline__ void ints(const uint32_t (&w)[2], int j, uint32_t &low, uint32_t &high) {
        low = (w[j] << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
        high = (w[j] & 0xf0f0f0f0u) ^ 0x80808080u;
    }
    static __device__ __forceinline__ float scale(const uint32_t (&head)[2], int parity, int j, int) {
        return scale_of(head, parity, j, 1.0f / 16);
    }
    static __device__ __forceinline__ float min(const uint32_t (&)[2], int, int) { return 0.0f; }
};

/* head: d and dmin, twelve bytes of scales and mins (drawn in model/quant.c). */
template <> struct q8_format<FD_Q4_K> {
    static constexpr int blocks = 4, halves = 1, words = 4, unit_bytes = 144, head_words = 4;
    static constexpr bool minimum = true;
    static __device__ __forceinline__ void ints(const uint32_t (&w)[4], int j, uint32_t &low, uint32_t &high) {
        low = w[j] & 0x0f0f0f0fu;
        high = w[j] >> 4 & 0x0f0f0f0fu;
    }
    /* Byte i of the word: exact, 6 bits. */
    static __device__ __forceinline__ float byte_of(uint32_t word, int i) { return (float)(word >> 8 * i & 63u); }
    static __device__ __forceinline__ float scale(const uint32_t (&head)[4], int parity, int j, int) {
        const uint32_t six = j < 2 ? head[1] : (head[3] & 0x0f0f0f0fu) | (head[1] >> 2 & 0x30303030u);
        return fd_half_to_float((uint16_t)head[0]) * byte_of(six, parity + 2 * (j % 2));
    }
    static __device__ __forceinline__ float min(const uint32_t (&head)[4], int parity, int j) {
        const uint32_t six = j < 2 ? head[2] : (head[3] >> 4 & 0x0f0f0f0fu) | (head[2] >> 2 & 0x30303030u);
        return fd_half_to_float((uint16_t)(head[0] >> 16)) * byte_of(six, parity + 2 * (j % 2));
    }
};

/* (q − 32)·4: six bits above zeros, the sign bit turned. words: four of low nibbles, two of high bits. head: the int8
 * scales of the parity's first and last halves of blocks, a byte for each j, then d. */
template <> struct q8_format<FD_Q6_K> {
    static constexpr int blocks = 4, halves = 2, words = 6, unit_bytes = 208, head_words = 3;
    static constexpr bool minimum = false;
    static __device__ __forceinline__ void ints(const uint32_t (&w)[6], int j, uint32_t &low, uint32_t &high) {
        const uint32_t bits = w[4 + j / 2] >> 4 * (j % 2);
        low = (w[j] << 2 & 0x3c3c3c3cu) | ((bits << 6 & 0xc0c0c0c0u) ^ 0x80808080u);
        high = (w[j] >> 2 & 0x3c3c3c3cu) | ((bits << 4 & 0xc0c0c0c0u) ^ 0x80808080u);
    }
    static __device__ __forceinline__ float scale(const uint32_t (&head)[3], int, int j, int half) {
        return fd_half_to_float((uint16_t)head[2]) * (float)(int8_t)(head[half] >> 8 * j) * 0.25f;
    }
    static __device__ __forceinline__ float min(const uint32_t (&)[3], int, int) { return 0.0f; }
};

#endif

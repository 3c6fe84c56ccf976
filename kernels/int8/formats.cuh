/* How the q8act kernels read packed weights (kernels/formats/pack.h): as int8 in words of four, and scales.
 *
 * Of eight lanes that share a row lane l owns elements 8l … 8l + 7 of every group of 64: eight elements of each block
 * of 32 whose number has the parity l / 4, which is the number of the partial sum. So the four lanes of one parity hold
 * its blocks, and lane l % 4 holds elements 8(l % 4) … + 7 of each: what the tensor core instruction wants of thread l
 * % 4 of a row, too, because an integer dot may take the elements of a block in any order.
 *
 * `load` gives a lane's words of a unit; `ints` the two words of its block number j in the unit (block parity + 2j),
 * scaled by a power of two, which its scale is divided by, exactly: nibbles become signed bytes in place. `load_head`
 * gives what scales and minima of one parity's blocks are made of; `scales` is the unit's part of the row's plane. */
#ifndef FD_KERNELS_INT8_FORMATS_CUH
#define FD_KERNELS_INT8_FORMATS_CUH

#include "base/dtype.h"
#include "kernels/formats/parts.cuh"
#include "numerics/q8act.h"

template <uint32_t DTYPE> struct q8_format;

/* Q8_0, Q4_0 and Q5_0: the scales of a unit's four blocks are 8 bytes of the row's plane. */
template <int WORDS, int UNIT_BYTES> struct q8_plain_format {
    static constexpr int blocks = 2; /* of one parity in a unit */
    static constexpr int halves = 1; /* scales a block */
    static constexpr bool minimum = false;
    static constexpr int words = WORDS, unit_bytes = UNIT_BYTES, scale_bytes = 8, head_words = 2;
    template <fd_reads READS>
    static __device__ __forceinline__ void load_head(const uint8_t *, const uint8_t *scales, int, uint32_t (&head)[2]) {
        const uint2 d = fd_fetch<uint2, READS>(scales);
        head[0] = d.x, head[1] = d.y;
    }
    static __device__ __forceinline__ float scale_of(const uint32_t (&head)[2], int parity, int j, float factor) {
        return fd_half_to_float((uint16_t)(head[j] >> 16 * parity)) * factor;
    }
    static __device__ __forceinline__ float min(const uint32_t (&)[2], int, int) { return 0.0f; }
};

template <> struct q8_format<FD_Q8_0> : q8_plain_format<4, 128> {
    template <fd_reads READS>
    static __device__ __forceinline__ void load(const uint8_t *unit, int lane, uint32_t (&w)[4]) {
        const uint4 q = fd_fetch<uint4, READS>(unit + lane * 16);
        w[0] = q.x, w[1] = q.y, w[2] = q.z, w[3] = q.w;
    }
    static __device__ __forceinline__ void ints(const uint32_t (&w)[4], int j, uint32_t &low, uint32_t &high) {
        low = w[2 * j];
        high = w[2 * j + 1];
    }
    static __device__ __forceinline__ float scale(const uint32_t (&head)[2], int parity, int j, int) {
        return scale_of(head, parity, j, 1.0f);
    }
};

/* (q − 8)·16: the nibble above zeros, its sign bit turned. */
template <> struct q8_format<FD_Q4_0> : q8_plain_format<2, 64> {
    template <fd_reads READS>
    static __device__ __forceinline__ void load(const uint8_t *unit, int lane, uint32_t (&w)[2]) {
        const uint2 q = fd_fetch<uint2, READS>(unit + lane * 8);
        w[0] = q.x, w[1] = q.y;
    }
    static __device__ __forceinline__ void ints(const uint32_t (&w)[2], int j, uint32_t &low, uint32_t &high) {
        low = (w[j] << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
        high = (w[j] & 0xf0f0f0f0u) ^ 0x80808080u;
    }
    static __device__ __forceinline__ float scale(const uint32_t (&head)[2], int parity, int j, int) {
        return scale_of(head, parity, j, 1.0f / 16);
    }
};

/* (q − 16)·8: five bits above zeros, the sign bit turned. words: two of nibbles, one of the two groups' fifth bits. */
template <> struct q8_format<FD_Q5_0> : q8_plain_format<3, 80> {
    template <fd_reads READS>
    static __device__ __forceinline__ void load(const uint8_t *unit, int lane, uint32_t (&w)[3]) {
        const uint2 q = fd_fetch<uint2, READS>(unit + lane * 8);
        w[0] = q.x, w[1] = q.y, w[2] = fd_fetch<uint16_t, READS>(unit + 64 + lane * 2);
    }
    /* Bits 0-3 to the sign bits of bytes 0-3, turned. */
    static __device__ __forceinline__ uint32_t signs(uint32_t bits) {
        return ~((bits & 15) * 0x10204080u) & 0x80808080u;
    }
    static __device__ __forceinline__ void ints(const uint32_t (&w)[3], int j, uint32_t &low, uint32_t &high) {
        low = (w[j] << 3 & 0x78787878u) | signs(w[2] >> 8 * j);
        high = (w[j] >> 1 & 0x78787878u) | signs(w[2] >> (8 * j + 4));
    }
    static __device__ __forceinline__ float scale(const uint32_t (&head)[2], int parity, int j, int) {
        return scale_of(head, parity, j, 1.0f / 8);
    }
};

/* head: d and dmin, twelve bytes of scales and mins (drawn in model/gguf/quant.c). */
template <> struct q8_format<FD_Q4_K> {
    static constexpr int blocks = 4, halves = 1, words = 4, unit_bytes = 144, scale_bytes = 0, head_words = 4;
    static constexpr bool minimum = true;
    template <fd_reads READS>
    static __device__ __forceinline__ void load(const uint8_t *unit, int lane, uint32_t (&w)[4]) {
        const uint4 q = fd_fetch<uint4, READS>(unit + 16 + lane * 16);
        w[0] = q.x, w[1] = q.y, w[2] = q.z, w[3] = q.w;
    }
    template <fd_reads READS>
    static __device__ __forceinline__ void load_head(const uint8_t *unit, const uint8_t *, int, uint32_t (&head)[4]) {
        const uint4 h = fd_fetch<uint4, READS>(unit);
        head[0] = h.x, head[1] = h.y, head[2] = h.z, head[3] = h.w;
    }
    static __device__ __forceinline__ void ints(const uint32_t (&w)[4], int j, uint32_t &low, uint32_t &high) {
        low = w[j] & 0x0f0f0f0fu;
        high = w[j] >> 4 & 0x0f0f0f0fu;
    }
    /* Byte i of the word: exact, 6 bits. */
    static __device__ __forceinline__ float byte_of(uint32_t word, int i) { return (float)(word >> 8 * i & 63u); }
    static __device__ __forceinline__ float scale(const uint32_t (&head)[4], int parity, int j, int) {
        const uint32_t six = j < 2 ? head[1] : (head[3] & 0x0f0f0f0fu) | (head[1] >> 2 & 0x30303030u);
        return fd_half_to_float((uint16_t)head[0]) * byte_of(six >> 8 * parity, 2 * (j % 2));
    }
    static __device__ __forceinline__ float min(const uint32_t (&head)[4], int parity, int j) {
        const uint32_t six = j < 2 ? head[2] : (head[3] >> 4 & 0x0f0f0f0fu) | (head[2] >> 2 & 0x30303030u);
        return fd_half_to_float((uint16_t)(head[0] >> 16)) * byte_of(six >> 8 * parity, 2 * (j % 2));
    }
};

/* (q − 32)·4: six bits above zeros, the sign bit turned. words: four of low nibbles, two of high bits. head: the int8
 * scales of the parity's first and last halves of blocks, a byte for each j, then d. */
template <> struct q8_format<FD_Q6_K> {
    static constexpr int blocks = 4, halves = 2, words = 6, unit_bytes = 208, scale_bytes = 2, head_words = 3;
    static constexpr bool minimum = false;
    template <fd_reads READS>
    static __device__ __forceinline__ void load(const uint8_t *unit, int lane, uint32_t (&w)[6]) {
        const uint4 q = fd_fetch<uint4, READS>(unit + lane * 16);
        const uint2 high = fd_fetch<uint2, READS>(unit + 128 + lane * 8);
        w[0] = q.x, w[1] = q.y, w[2] = q.z, w[3] = q.w, w[4] = high.x, w[5] = high.y;
    }
    template <fd_reads READS>
    static __device__ __forceinline__ void load_head(const uint8_t *unit, const uint8_t *scales, int parity,
                                                     uint32_t (&head)[3]) {
        const uint2 h = fd_fetch<uint2, READS>(unit + 192 + parity * 8);
        head[0] = h.x, head[1] = h.y, head[2] = fd_fetch<uint16_t, READS>(scales);
    }
    static __device__ __forceinline__ void ints(const uint32_t (&w)[6], int j, uint32_t &low, uint32_t &high) {
        const uint32_t bits = w[4 + j / 2] >> 4 * (j % 2);
        low = (w[j] << 2 & 0x3c3c3c3cu) | ((bits << 6 & 0xc0c0c0c0u) ^ 0x80808080u);
        high = (w[j] >> 2 & 0x3c3c3c3cu) | ((bits << 4 & 0xc0c0c0c0u) ^ 0x80808080u);
    }
    static __device__ __forceinline__ float scale(const uint32_t (&head)[3], int, int j, int half) {
        return fd_half_to_float((uint16_t)head[2]) * (float)(int8_t)((half ? head[1] : head[0]) >> 8 * j) * 0.25f;
    }
    static __device__ __forceinline__ float min(const uint32_t (&)[3], int, int) { return 0.0f; }
};

/* Calls `launch` with the type as a value of a type of its own. */
template <uint32_t DTYPE> struct q8_type { static constexpr uint32_t value = DTYPE; };
template <class Launch> static fd_code q8_with_type(uint32_t dtype, fd_error *err, Launch launch) {
    switch (dtype) {
    case FD_Q8_0: return launch(q8_type<FD_Q8_0>());
    case FD_Q4_0: return launch(q8_type<FD_Q4_0>());
    case FD_Q5_0: return launch(q8_type<FD_Q5_0>());
    case FD_Q4_K: return launch(q8_type<FD_Q4_K>());
    case FD_Q6_K: return launch(q8_type<FD_Q6_K>());
    default: return fd_fail(err, FD_ERR_UNSUPPORTED, "weight type %u: no q8act kernel reads it", (unsigned)dtype);
    }
}

#endif

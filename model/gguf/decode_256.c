/* The K-quants: blocks of 256 elements, scale times a small integer, less a minimum in some. */
#include <stddef.h>

#include "base/clones.h"
#include "model/gguf/float16.h"
#include "model/gguf/formats.h"

/* Q2_K, 256 elements:  0 scales[16]  16 bit pairs[64]  80 d  82 dmin    value = (d·scale)·q − (dmin·min)
 * Two halves of 128 elements in four quarters of 32: quarter k, element i is bits 2k+1 … 2k of the half's byte i. A byte
 * of scales, 16 elements: scale in the low nibble, min in the high one. */
FD_FOR_EACH_CPU void fd_decode_q2_k(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_q2_K)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q2_K, d)));
        const float dmin = f16_to_f32(load_u16(from + offsetof(fd_block_q2_K, dmin)));
        const uint8_t *scales = from + offsetof(fd_block_q2_K, scales), *q = from + offsetof(fd_block_q2_K, qs);
        for (int part = 0; part < 16; part++, to += 16) { /* of 16 elements */
            const float scale = d * (float)(scales[part] & 15), min = dmin * (float)(scales[part] >> 4);
            const uint8_t *pairs = q + part / 8 * 32 + part % 2 * 16;
            const int shift = part / 2 % 4 * 2;
            for (int i = 0; i < 16; i++) to[i] = scale * (float)(pairs[i] >> shift & 3) - min;
        }
    }
}

/* Q3_K, 256 elements:  0 high bits[32]  32 bit pairs[64]  96 scales[12]  108 d    value = (d·(scale − 32))·(q − 4)
 * Bit pairs as in Q2_K; bit k of high byte i is that of element 32k + i. Sixteen scales of six bits, 16 elements each:
 *    byte j     (j < 8)   s[j+8] bits 3-0, s[j] bits 3-0
 *    byte j + 8 (j < 4)   bits 5-4 of s[j+12], s[j+8], s[j+4], s[j] */
FD_FOR_EACH_CPU void fd_decode_q3_k(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_q3_K)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q3_K, d)));
        const uint8_t *high = from + offsetof(fd_block_q3_K, hmask), *q = from + offsetof(fd_block_q3_K, qs);
        const uint8_t *packed = from + offsetof(fd_block_q3_K, scales);
        for (int part = 0; part < 16; part++, to += 16) { /* of 16 elements */
            const int low4 = packed[part % 8] >> part / 8 * 4 & 15, high2 = packed[8 + part % 4] >> part / 4 * 2 & 3;
            const float scale = d * (float)((low4 | high2 << 4) - 32);
            const uint8_t *pairs = q + part / 8 * 32 + part % 2 * 16, *bits = high + part % 2 * 16;
            const int shift = part / 2 % 4 * 2, bit = part / 2;
            for (int i = 0; i < 16; i++)
                to[i] = scale * (float)(((pairs[i] >> shift & 3) | (bits[i] >> bit & 1) << 2) - 4);
        }
    }
}

/* The 12 bytes of Q4_K and Q5_K: eight groups of 32 with a 6-bit scale s and min m each (bits 7…0):
 *    byte j     (j < 4)   s[j+4] bits 5-4, s[j]        byte j + 4   m[j+4] bits 5-4, m[j]
 *    byte j + 8           m[j+4] bits 3-0, s[j+4] bits 3-0 */
static inline void unpack_scales(const uint8_t *packed, float d, float dmin, float *scale, float *min) {
    for (int j = 0; j < 4; j++) {
        scale[j] = d * (float)(packed[j] & 63);
        min[j] = dmin * (float)(packed[j + 4] & 63);
        scale[j + 4] = d * (float)((packed[j + 8] & 15) | (packed[j] >> 6 << 4));
        min[j + 4] = dmin * (float)((packed[j + 8] >> 4) | (packed[j + 4] >> 6 << 4));
    }
}

/* Q4_K, 256 elements:  0 d  2 dmin  4 scales[12]  16 nibbles[128]   value = (d·scale)·q − (dmin·min)
 * Nibble bytes 32p … 32p+31: group 2p low, group 2p + 1 high. */
FD_FOR_EACH_CPU void fd_decode_q4_k(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_q4_K)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q4_K, d)));
        const float dmin = f16_to_f32(load_u16(from + offsetof(fd_block_q4_K, dmin)));
        const uint8_t *q = from + offsetof(fd_block_q4_K, qs);
        float scale[8], min[8];
        unpack_scales(from + offsetof(fd_block_q4_K, scales), d, dmin, scale, min);
        for (int pair = 0; pair < 8; pair += 2, q += 32, to += 64) {
            for (int i = 0; i < 32; i++) to[i] = scale[pair] * (float)(q[i] & 15) - min[pair];
            for (int i = 0; i < 32; i++) to[32 + i] = scale[pair + 1] * (float)(q[i] >> 4) - min[pair + 1];
        }
    }
}

/* Q5_K, 256 elements:  0 d  2 dmin  4 scales[12]  16 fifth bits[32]  48 nibbles[128]   value = (d·scale)·q − (dmin·min)
 * Scales and nibbles as in Q4_K; bit g of fifth byte i is that of element i of group g. */
FD_FOR_EACH_CPU void fd_decode_q5_k(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_q5_K)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q5_K, d)));
        const float dmin = f16_to_f32(load_u16(from + offsetof(fd_block_q5_K, dmin)));
        const uint8_t *high = from + offsetof(fd_block_q5_K, qh), *q = from + offsetof(fd_block_q5_K, qs);
        float scale[8], min[8];
        unpack_scales(from + offsetof(fd_block_q5_K, scales), d, dmin, scale, min);
        for (int pair = 0; pair < 8; pair += 2, q += 32, to += 64) {
            for (int i = 0; i < 32; i++)
                to[i] = scale[pair] * (float)((q[i] & 15) | (high[i] >> pair & 1) << 4) - min[pair];
            for (int i = 0; i < 32; i++)
                to[32 + i] = scale[pair + 1] * (float)((q[i] >> 4) | (high[i] >> (pair + 1) & 1) << 4) - min[pair + 1];
        }
    }
}

/* Q6_K, 256 elements:  0 low nibbles[128]  128 high bit pairs[64]  192 int8 scales[16]  208 d    value = (d·scale)·(q −
 * 32) Two halves of 128 elements in four quarters of 32. Quarter k, element i: its low bits are in nibble byte i + 32(k
 * mod 2), low nibble for k < 2, else high; its high bits are bits 2k+1 … 2k of pair byte i. A scale: 16 elements. */
FD_FOR_EACH_CPU void fd_decode_q6_k(const uint8_t *restrict from, float *restrict to, int64_t n) {
    typedef uint8_t bytes __attribute__((vector_size(16)));
    typedef int32_t ints __attribute__((vector_size(64)));
    typedef float floats __attribute__((vector_size(64)));
    for (; n > 0; n -= 256, from += sizeof(fd_block_q6_K)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q6_K, d)));
        const uint8_t *low = from + offsetof(fd_block_q6_K, ql), *high = from + offsetof(fd_block_q6_K, qh);
        const int8_t *scales = (const int8_t *)from + offsetof(fd_block_q6_K, scales);
        for (int half = 0; half < 2; half++, low += 64, high += 32)
#pragma GCC unroll 4
            for (int quarter = 0; quarter < 4; quarter++)
#pragma GCC unroll 2
                for (int part = 0; part < 2;
                     part++, scales++, to += 16) { /* of 16 elements, as vectors: 4 times as fast */
                    bytes nibbles, bits;
                    memcpy(&nibbles, low + 32 * (quarter & 1) + 16 * part, sizeof nibbles);
                    memcpy(&bits, high + 16 * part, sizeof bits);
                    bytes q = (quarter < 2 ? nibbles & 15 : nibbles >> 4) | (bits >> 2 * quarter & 3) << 4;
                    ints shifted = __builtin_convertvector(q, ints) - 32;
                    floats y = d * (float)*scales * __builtin_convertvector(shifted, floats);
                    memcpy(to, &y, sizeof y);
                }
    }
}

/* Blocks of 32 elements, and NVFP4's of 64. */
#include <stddef.h>

#include "base/clones.h"
#include "model/gguf/codebooks.h"
#include "model/gguf/float16.h"
#include "model/gguf/formats.h"

/* Q8_0, 32 elements:  0 d  2 int8[32]                              value = d·q */
FD_FOR_EACH_CPU void fd_decode_q8_0(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 32, to += 32, from += sizeof(fd_block_q8_0)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q8_0, d)));
        const int8_t *q = (const int8_t *)from + offsetof(fd_block_q8_0, qs);
        for (int i = 0; i < 32; i++) to[i] = d * (float)q[i];
    }
}

/* Q4_0, 32 elements:  0 d  2 nibbles[16]                           value = d·(q − 8)
 * byte i: element i in the low nibble, element i + 16 in the high one */
FD_FOR_EACH_CPU void fd_decode_q4_0(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 32, to += 32, from += sizeof(fd_block_q4_0)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q4_0, d)));
        const uint8_t *q = from + offsetof(fd_block_q4_0, qs);
        for (int i = 0; i < 16; i++) to[i] = d * (float)((q[i] & 15) - 8);
        for (int i = 0; i < 16; i++) to[16 + i] = d * (float)((q[i] >> 4) - 8);
    }
}

/* Q5_0, 32 elements:  0 d  2 fifth bits[4]  6 nibbles[16]          value = d·(q − 16)
 * nibbles as in Q4_0; bit i of the 32 is element i's highest */
FD_FOR_EACH_CPU void fd_decode_q5_0(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 32, to += 32, from += sizeof(fd_block_q5_0)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q5_0, d)));
        const uint8_t *q = from + offsetof(fd_block_q5_0, qs);
        uint32_t high;
        memcpy(&high, from + offsetof(fd_block_q5_0, qh), sizeof high);
        for (int i = 0; i < 16; i++) to[i] = d * (float)((int)((q[i] & 15) | (high >> i & 1) << 4) - 16);
        for (int i = 0; i < 16; i++) to[16 + i] = d * (float)((int)((q[i] >> 4) | (high >> (16 + i) & 1) << 4) - 16);
    }
}

/* Q4_1, 32 elements:  0 d  2 m  4 nibbles[16]                      value = d·q + m
 * nibbles as in Q4_0 */
FD_FOR_EACH_CPU void fd_decode_q4_1(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 32, to += 32, from += sizeof(fd_block_q4_1)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q4_1, d)));
        const float m = f16_to_f32(load_u16(from + offsetof(fd_block_q4_1, m)));
        const uint8_t *q = from + offsetof(fd_block_q4_1, qs);
        for (int i = 0; i < 16; i++) to[i] = d * (float)(q[i] & 15) + m;
        for (int i = 0; i < 16; i++) to[16 + i] = d * (float)(q[i] >> 4) + m;
    }
}

/* Q5_1, 32 elements:  0 d  2 m  4 fifth bits[4]  8 nibbles[16]     value = d·q + m
 * nibbles and fifth bits as in Q5_0 */
FD_FOR_EACH_CPU void fd_decode_q5_1(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 32, to += 32, from += sizeof(fd_block_q5_1)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q5_1, d)));
        const float m = f16_to_f32(load_u16(from + offsetof(fd_block_q5_1, m)));
        const uint8_t *q = from + offsetof(fd_block_q5_1, qs);
        uint32_t high;
        memcpy(&high, from + offsetof(fd_block_q5_1, qh), sizeof high);
        for (int i = 0; i < 16; i++) to[i] = d * (float)((q[i] & 15) | (high >> i & 1) << 4) + m;
        for (int i = 0; i < 16; i++) to[16 + i] = d * (float)((q[i] >> 4) | (high >> (16 + i) & 1) << 4) + m;
    }
}

/* IQ4_NL, 32 elements:  0 d  2 nibbles[16]                         value = d·levels[q]
 * nibbles as in Q4_0 */
FD_FOR_EACH_CPU void fd_decode_iq4_nl(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 32, to += 32, from += sizeof(fd_block_iq4_nl)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_iq4_nl, d)));
        const uint8_t *q = from + offsetof(fd_block_iq4_nl, qs);
        for (int i = 0; i < 16; i++) to[i] = d * (float)fd_iq4_levels[q[i] & 15];
        for (int i = 0; i < 16; i++) to[16 + i] = d * (float)fd_iq4_levels[q[i] >> 4];
    }
}

/* Half of 2^(e − 127), for levels that are twice E2M1's; a binary32 subnormal for e < 2. 255, NaN in the OCP's E8M0, is
 * 2^127 here as in ggml. */
static inline float half_e8m0_to_f32(uint8_t e) {
    return float_of(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* MXFP4, 32 elements:  0 e (E8M0)  1 nibbles[16]                   value = 2^(e − 128)·levels[q]
 * nibbles as in Q4_0 */
FD_FOR_EACH_CPU void fd_decode_mxfp4(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 32, to += 32, from += sizeof(fd_block_mxfp4)) {
        const float d = half_e8m0_to_f32(from[offsetof(fd_block_mxfp4, e)]);
        const uint8_t *q = from + offsetof(fd_block_mxfp4, qs);
        for (int i = 0; i < 16; i++) to[i] = d * (float)fd_fp4_levels[q[i] & 15];
        for (int i = 0; i < 16; i++) to[16 + i] = d * (float)fd_fp4_levels[q[i] >> 4];
    }
}

/* Half of an unsigned E4M3 (bias 7, subnormals m·2^-9, no infinity); 127 is zero here as in ggml. Bit 7 is not read. */
static inline float half_ue4m3_to_f32(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if (bits == 127) return 0.0f;
    return exponent == 0 ? (float)mantissa * 0x1p-10f
                         : (float)(8 + mantissa) * float_of((uint32_t)(127 + exponent - 11) << 23);
}

/* NVFP4, 64 elements:  0 scales[4] (UE4M3)  4 nibbles[32]          value = scale/2·levels[q]
 * A scale: 16 elements, whose 8 bytes have elements 0…7 in the low nibbles, 8…15 in the high ones. */
FD_FOR_EACH_CPU void fd_decode_nvfp4(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 64, from += sizeof(fd_block_nvfp4))
        for (int part = 0; part < 4; part++, to += 16) {
            const float d = half_ue4m3_to_f32(from[offsetof(fd_block_nvfp4, scales) + part]);
            const uint8_t *q = from + offsetof(fd_block_nvfp4, qs) + 8 * part;
            for (int i = 0; i < 8; i++) to[i] = d * (float)fd_fp4_levels[q[i] & 15];
            for (int i = 0; i < 8; i++) to[8 + i] = d * (float)fd_fp4_levels[q[i] >> 4];
        }
}

/* Blocks of 32 elements with a scale, or a scale and a minimum. */
#include <stddef.h>

#include "base/clones.h"
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

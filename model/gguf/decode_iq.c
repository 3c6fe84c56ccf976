/* The IQ types of 256 elements: scale times a vector of a code book, four or eight elements a code, most with signs of
 * their own. Every value is exact: d has 11 significant bits, a scale up to 6, an entry up to 7. */
#include <stddef.h>

#include "base/clones.h"
#include "model/gguf/codebooks.h"
#include "model/gguf/float16.h"
#include "model/gguf/formats.h"

static inline uint32_t load_u32(const uint8_t *from) {
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline float signed_if(uint32_t bit, float value) {
    return float_of(bits_of(value) | bit << 31);
}

/* Seven sign bits stand for eight: their number is even. */
static inline uint32_t even_signs(uint32_t seven) {
    seven &= 127;
    const uint32_t folded = seven ^ seven >> 4;
    return seven | (0x6996u >> (folded & 15) & 1) << 7;
}

/* Eight elements of an IQ2 code book, 2 bits each: 0, 1, 2 for 8, 25, 43. */
static inline void eight_of_iq2(float scale, uint32_t code, uint32_t signs, float *restrict to) {
    for (int i = 0; i < 8; i++) {
        const uint32_t level = code >> 2 * i & 3;
        to[i] = scale * signed_if(signs >> i & 1, (float)(int)(8 + 17 * level + (level >> 1)));
    }
}

/* IQ2_XXS, 256 elements:  0 d  2 groups[8]                     value = d·(s + 1/2)/4 · sign · entry
 * A group, 32 elements: 4 bytes, a code each for 8 elements; a word: bits 31-28 s, bits 7k+6 … 7k code k's signs. */
FD_FOR_EACH_CPU void fd_decode_iq2_xxs(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_iq2_xxs)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_iq2_xxs, d)));
        const uint8_t *group = from + offsetof(fd_block_iq2_xxs, qs);
        for (int g = 0; g < 8; g++, group += 8) {
            const uint32_t word = load_u32(group + 4);
            const float scale = d * (float)(2 * (word >> 28) + 1) * 0.125f;
            for (int k = 0; k < 4; k++, to += 8)
                eight_of_iq2(scale, fd_iq2_xxs_codes[group[k]], even_signs(word >> 7 * k), to);
        }
    }
}

/* IQ2_XS, 256 elements:  0 d  2 codes[32]  66 scales[8]        value as IQ2_XXS's
 * A code of 16 bits, 8 elements: bits 8-0 the entry, 15-9 the signs. A byte of scales: of 16 elements low, of the next
 * 16 high. */
FD_FOR_EACH_CPU void fd_decode_iq2_xs(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_iq2_xs)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_iq2_xs, d)));
        const uint8_t *codes = from + offsetof(fd_block_iq2_xs, qs), *scales = from + offsetof(fd_block_iq2_xs, scales);
        for (int k = 0; k < 32; k++, to += 8) {
            const uint32_t code = load_u16(codes + 2 * k), s = scales[k / 4] >> k / 2 % 2 * 4 & 15;
            eight_of_iq2(d * (float)(2 * s + 1) * 0.125f, fd_iq2_xs_codes[code & 511], even_signs(code >> 9), to);
        }
    }
}

/* IQ2_S, 256 elements:  0 d  2 codes[32]  34 signs[32]  66 high bits[8]  74 scales[8]        value as IQ2_XXS's
 * Code k, 8 elements: its byte, bits 9-8 of it in bits 2(k mod 4) of high byte k/4, its own byte of signs. Scales as in
 * IQ2_XS. */
FD_FOR_EACH_CPU void fd_decode_iq2_s(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_iq2_s)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_iq2_s, d)));
        const uint8_t *codes = from + offsetof(fd_block_iq2_s, qs), *signs = from + offsetof(fd_block_iq2_s, signs);
        const uint8_t *high = from + offsetof(fd_block_iq2_s, qh), *scales = from + offsetof(fd_block_iq2_s, scales);
        for (int k = 0; k < 32; k++, to += 8) {
            const uint32_t code = codes[k] | (high[k / 4] >> k % 4 * 2 & 3) << 8,
                           s = scales[k / 4] >> k / 2 % 2 * 4 & 15;
            eight_of_iq2(d * (float)(2 * s + 1) * 0.125f, fd_iq2_s_codes[code], signs[k], to);
        }
    }
}

/* IQ3_XXS, 256 elements:  0 d  2 codes[64]  66 groups[8]       value = d·(s + 1/2)/2 · sign · entry
 * A code: 4 elements of 3 bits, 0 … 7 for 4, 12, 20, 28, 36, 44, 52, 62. A group's word, 32 elements: as IQ2_XXS's. */
FD_FOR_EACH_CPU void fd_decode_iq3_xxs(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_iq3_xxs)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_iq3_xxs, d)));
        const uint8_t *codes = from + offsetof(fd_block_iq3_xxs, qs);
        for (int k = 0; k < 32; k++, codes += 2, to += 8) {
            const uint32_t word = load_u32(from + offsetof(fd_block_iq3_xxs, signs) + k / 4 * 4);
            const uint32_t signs = even_signs(word >> k % 4 * 7);
            const uint32_t code = fd_iq3_xxs_codes[codes[0]] | (uint32_t)fd_iq3_xxs_codes[codes[1]] << 12;
            const float scale = d * (float)(2 * (word >> 28) + 1) * 0.25f;
            for (int i = 0; i < 8; i++) {
                const uint32_t level = code >> 3 * i & 7;
                to[i] = scale * signed_if(signs >> i & 1, (float)(int)(4 + 8 * level + 2 * ((level + 1) >> 3)));
            }
        }
    }
}

/* IQ3_S, 256 elements:  0 d  2 codes[64]  66 high bits[8]  74 signs[32]  106 scales[4]
 * value = d·(2s + 1) · sign · entry
 * A code: 4 elements of 3 bits, 0 … 7 for 1, 3, … 15; bit k mod 8 of high byte k/8 is code k's ninth. Signs: a bit an
 * element. Scales: 4 bits for 32 elements, the low ones first. */
FD_FOR_EACH_CPU void fd_decode_iq3_s(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_iq3_s)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_iq3_s, d)));
        const uint8_t *codes = from + offsetof(fd_block_iq3_s, qs), *high = from + offsetof(fd_block_iq3_s, qh);
        const uint8_t *signs = from + offsetof(fd_block_iq3_s, signs),
                      *scales = from + offsetof(fd_block_iq3_s, scales);
        for (int k = 0; k < 32; k++, codes += 2, to += 8) {
            const uint32_t ninth = high[k / 4] >> k % 4 * 2 & 3;
            const uint32_t code = fd_iq3_s_codes[codes[0] | (ninth & 1) << 8] |
                                  (uint32_t)fd_iq3_s_codes[codes[1] | ninth >> 1 << 8] << 12;
            const float scale = d * (float)(2 * (scales[k / 8] >> k / 4 % 2 * 4 & 15) + 1);
            for (int i = 0; i < 8; i++)
                to[i] = scale * signed_if(signs[k] >> i & 1, (float)(int)(2 * (code >> 3 * i & 7) + 1));
        }
    }
}

/* Eight elements of the IQ1 code book, 2 bits each: 0, 1, 2 for −1, 0, 1; an eighth up or down for all. */
static inline void eight_of_iq1(float scale, uint32_t code, bool down, float *restrict to) {
    const float shift = down ? -0.125f : 0.125f;
    for (int i = 0; i < 8; i++) to[i] = scale * ((float)((int)(code >> 2 * i & 3) - 1) + shift);
}

/* IQ1_S, 256 elements:  0 d  2 codes[32]  34 groups[8]         value = d·(2s + 1) · (entry ± 1/8)
 * A group's 16 bits, 32 elements: bit 15 down, bits 14-12 s, bits 3k+2 … 3k are bits 10-8 of its code k. */
FD_FOR_EACH_CPU void fd_decode_iq1_s(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_iq1_s)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_iq1_s, d)));
        const uint8_t *codes = from + offsetof(fd_block_iq1_s, qs);
        for (int k = 0; k < 32; k++, to += 8) {
            const uint32_t group = load_u16(from + offsetof(fd_block_iq1_s, qh) + k / 4 * 2);
            const uint32_t code = codes[k] | (group >> k % 4 * 3 & 7) << 8;
            eight_of_iq1(d * (float)(2 * (group >> 12 & 7) + 1), fd_iq1_codes[code], group >> 15, to);
        }
    }
}

/* IQ1_M, 256 elements:  0 codes[32]  32 high bits[16]  48 scales[4]     value as IQ1_S's
 * Code k, 8 elements: its byte and nibble k of the high bits: bits 2-0 of it are the code's 10-8, bit 3 down. Scales, of
 * 16 bits: bits 3j+2 … 3j are s of 16 elements, bits 15-12 of the four are d's, the lowest first. */
FD_FOR_EACH_CPU void fd_decode_iq1_m(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_iq1_m)) {
        const uint8_t *codes = from + offsetof(fd_block_iq1_m, qs), *high = from + offsetof(fd_block_iq1_m, qh);
        const uint8_t *scales = from + offsetof(fd_block_iq1_m, scales);
        uint32_t half = 0;
        for (int i = 0; i < 4; i++) half |= (uint32_t)(scales[2 * i + 1] >> 4) << 4 * i;
        const float d = f16_to_f32((uint16_t)half);
        for (int k = 0; k < 32; k++, to += 8) {
            const uint32_t nibble = high[k / 2] >> k % 2 * 4 & 15,
                           s = load_u16(scales + k / 8 * 2) >> k / 2 % 4 * 3 & 7;
            eight_of_iq1(d * (float)(2 * s + 1), fd_iq1_codes[codes[k] | (nibble & 7) << 8], nibble >> 3, to);
        }
    }
}

/* IQ4_XS, 256 elements:  0 d  2 high scales  4 low scales[4]  8 nibbles[128]     value = (d·(scale − 32))·levels[q]
 * Eight groups of 32: bits 3-0 of a scale in the low bytes, the lower nibble first, bits 5-4 in the 16 high bits.
 * Nibbles as in Q4_0, 16 bytes a group. */
FD_FOR_EACH_CPU void fd_decode_iq4_xs(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_iq4_xs)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_iq4_xs, d)));
        const uint32_t high = load_u16(from + offsetof(fd_block_iq4_xs, scales_h));
        const uint8_t *low = from + offsetof(fd_block_iq4_xs, scales_l), *q = from + offsetof(fd_block_iq4_xs, qs);
        for (int g = 0; g < 8; g++, q += 16, to += 32) {
            const float scale = d * (float)((int)((low[g / 2] >> g % 2 * 4 & 15) | (high >> 2 * g & 3) << 4) - 32);
            for (int i = 0; i < 16; i++) to[i] = scale * (float)fd_iq4_levels[q[i] & 15];
            for (int i = 0; i < 16; i++) to[16 + i] = scale * (float)fd_iq4_levels[q[i] >> 4];
        }
    }
}

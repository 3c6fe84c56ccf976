/* Formats whose values are a scale times a code, exactly: what becomes of a block is its codes, int8, and the scale of
 * each 16 of them. The code books' (IQ1 … IQ3: four or eight elements a code, most with signs of their own), those whose
 * nibbles stand for 16 levels (IQ4, FP4), and the ternary ones.
 *
 * Exact: d has 11 significant bits, a scale up to 6, a code up to 7; only MXFP4's can leave binary32's range. */
#include <stddef.h>

#include "base/clones.h"
#include "base/levels.h"
#include "model/gguf/codebooks.h"
#include "model/gguf/float16.h"
#include "model/gguf/formats.h"

/* From unpack_name, which takes a block apart: fd_codes_name and the decoder. */
#define FROM_CODES(name, elements)                                                                                     \
    FD_FOR_EACH_CPU void fd_codes_##name(const uint8_t *restrict from, float *restrict scales, int8_t *restrict codes, \
                                         int64_t n) {                                                                  \
        for (; n > 0; n -= elements, from += sizeof(fd_block_##name), scales += elements / 16, codes += elements)      \
            unpack_##name(from, scales, codes);                                                                        \
    }                                                                                                                  \
    FD_FOR_EACH_CPU void fd_decode_##name(const uint8_t *restrict from, float *restrict to, int64_t n) {               \
        float scales[elements / 16];                                                                                   \
        int8_t codes[elements];                                                                                        \
        for (; n > 0; n -= elements, from += sizeof(fd_block_##name), to += elements) {                                \
            unpack_##name(from, scales, codes);                                                                        \
            for (int i = 0; i < elements; i++) to[i] = scales[i / 16] * (float)codes[i];                               \
        }                                                                                                              \
    }

static inline float load_f16(const uint8_t *from) {
    return f16_to_f32(load_u16(from));
}

static inline uint32_t load_u32(const uint8_t *from) {
    uint32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* ---- nibbles that stand for levels ---- */

static const int8_t iq4_levels[16] = {FD_IQ4_LEVELS}, fp4_levels[16] = {FD_FP4_LEVELS};

/* n bytes: element i in the low nibble of byte i, element n + i in the high one. */
static inline void unpack_nibbles(const uint8_t *from, int n, const int8_t *levels, int8_t *restrict codes) {
    for (int i = 0; i < n; i++) codes[i] = levels[from[i] & 15];
    for (int i = 0; i < n; i++) codes[n + i] = levels[from[i] >> 4];
}

/* The same for 16 bytes, by the permutation of bytes that most vector units have. */
static inline void unpack_16_nibbles(const uint8_t *from, const int8_t *levels, int8_t *restrict codes) {
#ifdef __clang__
    unpack_nibbles(from, 16, levels, codes);
#else
    typedef uint8_t bytes __attribute__((vector_size(16)));
    bytes q, table;
    memcpy(&q, from, sizeof q);
    memcpy(&table, levels, sizeof table);
    const bytes low = __builtin_shuffle(table, q & 15), high = __builtin_shuffle(table, q >> 4);
    memcpy(codes, &low, sizeof low);
    memcpy(codes + 16, &high, sizeof high);
#endif
}

/* IQ4_NL, 32 elements:  0 d  2 nibbles[16]                         value = d·level */
static inline void unpack_iq4_nl(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    scales[0] = scales[1] = load_f16(from + offsetof(fd_block_iq4_nl, d));
    unpack_16_nibbles(from + offsetof(fd_block_iq4_nl, qs), iq4_levels, codes);
}
FROM_CODES(iq4_nl, 32)

/* IQ4_XS, 256 elements:  0 d  2 high scales  4 low scales[4]  8 nibbles[128]     value = (d·(scale − 32))·level
 * Eight groups of 32: bits 3-0 of a scale in the low bytes, the lower nibble first, bits 5-4 in the 16 high bits. */
static inline void unpack_iq4_xs(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    const float d = load_f16(from + offsetof(fd_block_iq4_xs, d));
    const uint32_t high = load_u16(from + offsetof(fd_block_iq4_xs, scales_h));
    const uint8_t *low = from + offsetof(fd_block_iq4_xs, scales_l), *q = from + offsetof(fd_block_iq4_xs, qs);
    for (int g = 0; g < 8; g++) {
        const int scale = (int)((low[g / 2] >> g % 2 * 4 & 15) | (high >> 2 * g & 3) << 4);
        scales[2 * g] = scales[2 * g + 1] = d * (float)(scale - 32);
        unpack_16_nibbles(q + 16 * g, iq4_levels, codes + 32 * g);
    }
}
FROM_CODES(iq4_xs, 256)

/* Half of 2^(e − 127), for levels that are twice E2M1's; a binary32 subnormal for e < 2. 255, NaN in the OCP's E8M0, is
 * 2^127 here as in ggml. */
static inline float half_e8m0_to_f32(uint8_t e) {
    return float_of(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
}

/* MXFP4, 32 elements:  0 e (E8M0)  1 nibbles[16]                   value = 2^(e − 128)·level */
static inline void unpack_mxfp4(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    scales[0] = scales[1] = half_e8m0_to_f32(from[offsetof(fd_block_mxfp4, e)]);
    unpack_16_nibbles(from + offsetof(fd_block_mxfp4, qs), fp4_levels, codes);
}
FROM_CODES(mxfp4, 32)

/* Half of an unsigned E4M3 (bias 7, subnormals m·2^-9, no infinity); 127 is zero here as in ggml. Bit 7 is not read. */
static inline float half_ue4m3_to_f32(uint8_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if (bits == 127) return 0.0f;
    return exponent == 0 ? (float)mantissa * 0x1p-10f
                         : (float)(8 + mantissa) * float_of((uint32_t)(127 + exponent - 11) << 23);
}

/* NVFP4, 64 elements:  0 scales[4] (UE4M3)  4 nibbles[32]          value = scale/2·level
 * A scale and 8 bytes of nibbles: 16 elements. */
static inline void unpack_nvfp4(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    for (int part = 0; part < 4; part++) {
        scales[part] = half_ue4m3_to_f32(from[offsetof(fd_block_nvfp4, scales) + part]);
        unpack_nibbles(from + offsetof(fd_block_nvfp4, qs) + 8 * part, 8, fp4_levels, codes + 16 * part);
    }
}
FROM_CODES(nvfp4, 64)

/* ---- ternary ---- */

/* Byte i of n has n_trit trits, elements i, n + i, …: as the fraction byte/256 in base 3, so that trit k is what
 * byte·3^k mod 256, times 3, has from 256 on. */
static inline void unpack_trits(const uint8_t *from, int n, int n_trit, int8_t *restrict codes) {
    for (int k = 0, power = 1; k < n_trit; k++, power *= 3)
        for (int i = 0; i < n; i++) codes[k * n + i] = (int8_t)(((uint8_t)(from[i] * power) * 3 >> 8) - 1);
}

/* TQ1_0, 256 elements:  0 trits[48]  48 trits[4]  52 d             value = d·(trit − 1)
 * The first 32 bytes have 160 elements, the next 16 80, the last four, with four trits each, 16. */
static inline void unpack_tq1_0(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    const uint8_t *q = from + offsetof(fd_block_tq1_0, qs);
    for (int i = 0; i < 16; i++) scales[i] = load_f16(from + offsetof(fd_block_tq1_0, d));
    unpack_trits(q, 32, 5, codes);
    unpack_trits(q + 32, 16, 5, codes + 160);
    unpack_trits(from + offsetof(fd_block_tq1_0, qh), 4, 4, codes + 240);
}
FROM_CODES(tq1_0, 256)

/* TQ2_0, 256 elements:  0 bit pairs[64]  64 d                      value = d·(q − 1)
 * bit pairs as in Q2_K (decode_256.c) */
static inline void unpack_tq2_0(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    const uint8_t *q = from + offsetof(fd_block_tq2_0, qs);
    for (int i = 0; i < 16; i++) scales[i] = load_f16(from + offsetof(fd_block_tq2_0, d));
    for (int quarter = 0; quarter < 8; quarter++)
        for (int i = 0; i < 32; i++)
            codes[32 * quarter + i] = (int8_t)((q[quarter / 4 * 32 + i] >> quarter % 4 * 2 & 3) - 1);
}
FROM_CODES(tq2_0, 256)

/* ---- code books: a word of the book is four or eight elements ---- */

/* Seven sign bits stand for eight: their number is even. */
static inline uint32_t even_signs(uint32_t seven) {
    seven &= 127;
    return seven | (0x6996u >> ((seven ^ seven >> 4) & 15) & 1) << 7;
}

/* Eight elements of an IQ2 word, 2 bits each: 0, 1, 2 for 8, 25, 43. */
static inline void unpack_iq2(uint32_t word, uint32_t signs, int8_t *restrict codes) {
    for (int i = 0; i < 8; i++) {
        const int level = (int)(word >> 2 * i & 3), value = 8 + 17 * level + (level >> 1);
        codes[i] = (int8_t)(signs >> i & 1 ? -value : value);
    }
}

/* IQ2_XXS, 256 elements:  0 d  2 groups[8]                     value = d·(s + 1/2)/4 · sign · entry
 * A group, 32 elements: 4 bytes, a code each for 8 elements; a word: bits 31-28 s, bits 7k+6 … 7k code k's signs. */
static inline void unpack_iq2_xxs(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    const float d = load_f16(from + offsetof(fd_block_iq2_xxs, d));
    const uint8_t *group = from + offsetof(fd_block_iq2_xxs, qs);
    for (int g = 0; g < 8; g++, group += 8) {
        const uint32_t word = load_u32(group + 4);
        scales[2 * g] = scales[2 * g + 1] = d * (float)(2 * (word >> 28) + 1) * 0.125f;
        for (int k = 0; k < 4; k++)
            unpack_iq2(fd_iq2_xxs_codes[group[k]], even_signs(word >> 7 * k), codes + 32 * g + 8 * k);
    }
}
FROM_CODES(iq2_xxs, 256)

/* The nibbles of 8 bytes are the scales of 16 elements each, the low one first. */
static inline void unpack_iq2_scales(float d, const uint8_t *from, float *restrict scales) {
    for (int i = 0; i < 16; i++) scales[i] = d * (float)(2 * (from[i / 2] >> i % 2 * 4 & 15) + 1) * 0.125f;
}

/* IQ2_XS, 256 elements:  0 d  2 codes[32]  66 scales[8]        value as IQ2_XXS's
 * A code of 16 bits, 8 elements: bits 8-0 the entry, 15-9 the signs. */
static inline void unpack_iq2_xs(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    const float d = load_f16(from + offsetof(fd_block_iq2_xs, d));
    unpack_iq2_scales(d, from + offsetof(fd_block_iq2_xs, scales), scales);
    for (int k = 0; k < 32; k++) {
        const uint32_t code = load_u16(from + offsetof(fd_block_iq2_xs, qs) + 2 * k);
        unpack_iq2(fd_iq2_xs_codes[code & 511], even_signs(code >> 9), codes + 8 * k);
    }
}
FROM_CODES(iq2_xs, 256)

/* IQ2_S, 256 elements:  0 d  2 codes[32]  34 signs[32]  66 high bits[8]  74 scales[8]        value as IQ2_XXS's
 * Code k, 8 elements: its byte, bits 9-8 of it in bits 2(k mod 4) of high byte k/4, its own byte of signs. */
static inline void unpack_iq2_s(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    const float d = load_f16(from + offsetof(fd_block_iq2_s, d));
    const uint8_t *low = from + offsetof(fd_block_iq2_s, qs), *high = from + offsetof(fd_block_iq2_s, qh);
    unpack_iq2_scales(d, from + offsetof(fd_block_iq2_s, scales), scales);
    for (int k = 0; k < 32; k++)
        unpack_iq2(fd_iq2_s_codes[low[k] | (high[k / 4] >> k % 4 * 2 & 3) << 8],
                   from[offsetof(fd_block_iq2_s, signs) + k], codes + 8 * k);
}
FROM_CODES(iq2_s, 256)

/* IQ3_XXS, 256 elements:  0 d  2 codes[64]  66 groups[8]       value = d·(s + 1/2)/2 · sign · entry
 * A code: 4 elements of 3 bits, 0 … 7 for 4, 12, 20, 28, 36, 44, 52, 62. A group's word, 32 elements: as IQ2_XXS's. */
static inline void unpack_iq3_xxs(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    const float d = load_f16(from + offsetof(fd_block_iq3_xxs, d));
    const uint8_t *low = from + offsetof(fd_block_iq3_xxs, qs);
    for (int k = 0; k < 32; k++) {
        const uint32_t group = load_u32(from + offsetof(fd_block_iq3_xxs, signs) + k / 4 * 4);
        const uint32_t signs = even_signs(group >> k % 4 * 7);
        const uint32_t word = fd_iq3_xxs_codes[low[2 * k]] | (uint32_t)fd_iq3_xxs_codes[low[2 * k + 1]] << 12;
        scales[k / 2] = d * (float)(2 * (group >> 28) + 1) * 0.25f;
        for (int i = 0; i < 8; i++) {
            const int level = (int)(word >> 3 * i & 7), value = 4 + 8 * level + 2 * (level == 7);
            codes[8 * k + i] = (int8_t)(signs >> i & 1 ? -value : value);
        }
    }
}
FROM_CODES(iq3_xxs, 256)

/* IQ3_S, 256 elements:  0 d  2 codes[64]  66 high bits[8]  74 signs[32]  106 scales[4]
 * value = d·(2s + 1) · sign · entry
 * A code: 4 elements of 3 bits, 0 … 7 for 1, 3, … 15; bit k mod 8 of high byte k/8 is code k's ninth. Signs: a bit an
 * element. Scales: 4 bits for 32 elements, the low ones first. */
static inline void unpack_iq3_s(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    const float d = load_f16(from + offsetof(fd_block_iq3_s, d));
    const uint8_t *low = from + offsetof(fd_block_iq3_s, qs), *high = from + offsetof(fd_block_iq3_s, qh);
    const uint8_t *nibbles = from + offsetof(fd_block_iq3_s, scales);
    for (int k = 0; k < 32; k++) {
        const uint32_t ninth = high[k / 4] >> k % 4 * 2 & 3, signs = from[offsetof(fd_block_iq3_s, signs) + k];
        const uint32_t word = fd_iq3_s_codes[low[2 * k] | (ninth & 1) << 8] |
                              (uint32_t)fd_iq3_s_codes[low[2 * k + 1] | ninth >> 1 << 8] << 12;
        scales[k / 2] = d * (float)(2 * (nibbles[k / 8] >> k / 4 % 2 * 4 & 15) + 1);
        for (int i = 0; i < 8; i++) {
            const int value = (int)(2 * (word >> 3 * i & 7) + 1);
            codes[8 * k + i] = (int8_t)(signs >> i & 1 ? -value : value);
        }
    }
}
FROM_CODES(iq3_s, 256)

/* Eight elements of the IQ1 book, 2 bits each: 0, 1, 2 for −1, 0, 1, all an eighth up or down: in eighths. */
static inline void unpack_iq1(uint32_t word, bool down, int8_t *restrict codes) {
    for (int i = 0; i < 8; i++) codes[i] = (int8_t)(8 * ((int)(word >> 2 * i & 3) - 1) + (down ? -1 : 1));
}

/* IQ1_S, 256 elements:  0 d  2 codes[32]  34 groups[8]         value = d·(2s + 1) · (entry ± 1/8)
 * A group's 16 bits, 32 elements: bit 15 down, bits 14-12 s, bits 3k+2 … 3k are bits 10-8 of its code k. */
static inline void unpack_iq1_s(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    const float d = load_f16(from + offsetof(fd_block_iq1_s, d));
    const uint8_t *low = from + offsetof(fd_block_iq1_s, qs);
    for (int k = 0; k < 32; k++) {
        const uint32_t group = load_u16(from + offsetof(fd_block_iq1_s, qh) + k / 4 * 2);
        scales[k / 2] = d * (float)(2 * (group >> 12 & 7) + 1) * 0.125f;
        unpack_iq1(fd_iq1_codes[low[k] | (group >> k % 4 * 3 & 7) << 8], group >> 15, codes + 8 * k);
    }
}
FROM_CODES(iq1_s, 256)

/* IQ1_M, 256 elements:  0 codes[32]  32 high bits[16]  48 scales[4]     value as IQ1_S's
 * Code k, 8 elements: its byte and nibble k of the high bits: bits 2-0 of it are the code's 10-8, bit 3 down. Scales, of
 * 16 bits: bits 3j+2 … 3j are s of 16 elements, bits 15-12 of the four are d's, the lowest first. */
static inline void unpack_iq1_m(const uint8_t *from, float *restrict scales, int8_t *restrict codes) {
    const uint8_t *low = from + offsetof(fd_block_iq1_m, qs), *high = from + offsetof(fd_block_iq1_m, qh);
    const uint8_t *words = from + offsetof(fd_block_iq1_m, scales);
    uint32_t half = 0;
    for (int i = 0; i < 4; i++) half |= (uint32_t)(words[2 * i + 1] >> 4) << 4 * i;
    const float d = f16_to_f32((uint16_t)half);
    for (int i = 0; i < 16; i++)
        scales[i] = d * (float)(2 * (load_u16(words + i / 4 * 2) >> i % 4 * 3 & 7) + 1) * 0.125f;
    for (int k = 0; k < 32; k++) {
        const uint32_t nibble = high[k / 2] >> k % 2 * 4 & 15;
        unpack_iq1(fd_iq1_codes[low[k] | (nibble & 7) << 8], nibble >> 3, codes + 8 * k);
    }
}
FROM_CODES(iq1_m, 256)

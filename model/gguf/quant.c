/* The block formats, decoded and encoded. Sources: the GGUF specification and ggml's type table; tests/model compares
 * with the values of the `gguf` Python package.
 *
 * Every product and difference below is one binary32 operation, rounded as written (-ffp-contract=off): the CUDA
 * kernels follow the same steps and get the same bits. Scales are 16-bit floats (11 significant bits) times integers of
 * few bits (at most 11 + 7 + 5 in Q6_K), so every product is exact; only Q4_K's last subtraction can round. */
#include "model/gguf/quant.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/clones.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "blocks are read in place: little-endian hosts only"
#endif

/* The table of base/dtype.c cannot be read at compile time; test_quant compares it with these. */
static_assert(sizeof(fd_block_q4_0) == 2 + 16, "Q4_0: 18 bytes for 32 elements");
static_assert(sizeof(fd_block_q5_0) == 2 + 4 + 16, "Q5_0: 22 bytes for 32 elements");
static_assert(sizeof(fd_block_q8_0) == 2 + 32, "Q8_0: 34 bytes for 32 elements");
static_assert(sizeof(fd_block_q4_K) == 2 + 2 + 12 + 128, "Q4_K: 144 bytes for 256 elements");
static_assert(sizeof(fd_block_q6_K) == 128 + 64 + 16 + 2, "Q6_K: 210 bytes for 256 elements");

/* ---- 16-bit floats ---- */

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline uint16_t load_u16(const uint8_t *from) {
    uint16_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

/*  binary16  s eeeee mmmmmmmmmm          exponent bias 15
 *  binary32  s eeeeeeee mmmmmmmmmm0…0    exponent bias 127: 112 more */
static inline float f16_to_f32(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = (uint32_t)(half & 0x7fffu) << 13;
    const uint32_t exponent = rest & (31u << 23);
    const uint32_t normal = rest + (112u << 23), special = rest + (224u << 23); /* Inf, NaN: exponent 31 becomes 255 */
    /* A subnormal is m·2^-24: put m behind the exponent of 2^-14 and take that 2^-14 away again. Exact, and no operand
     * is a binary32 subnormal, which would be slow and would be lost where a host flushes them. */
    const uint32_t subnormal = bits_of(float_of(rest + (113u << 23)) - 0x1p-14f);
    const uint32_t bits = exponent == 0 ? subnormal : exponent == (31u << 23) ? special : normal;
    return float_of(sign | bits);
}

static inline float bf16_to_f32(uint16_t half) {
    return float_of((uint32_t)half << 16);
}

static inline uint16_t f32_to_f16(float value) {
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    /* 65520 lies midway between the largest finite value and the next power of two; ties go to even, which is Inf. */
    const uint32_t overflow = bits_of(65520.0f), smallest_normal = bits_of(0x1p-14f);
    uint32_t half;
    if (magnitude > 0x7f800000u)
        half = 0x7e00u | (magnitude >> 13 & 0x3ffu); /* a quiet NaN with what fits of the payload */
    else if (magnitude >= overflow)
        half = 0x7c00u;
    else if (magnitude < smallest_normal)
        half = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f); /* 0.5's last bit is 2^-24, as a subnormal's is */
    else
        half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13; /* half an ulp up, ties to even */
    return (uint16_t)(sign | half);
}

static inline uint16_t f32_to_bf16(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* quiet, or rounding could make it Inf */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float fd_f16_to_f32(uint16_t bits) {
    return f16_to_f32(bits);
}
float fd_bf16_to_f32(uint16_t bits) {
    return bf16_to_f32(bits);
}
uint16_t fd_f32_to_f16(float value) {
    return f32_to_f16(value);
}
uint16_t fd_f32_to_bf16(float value) {
    return f32_to_bf16(value);
}

/* ---- decoding: n elements, whole blocks; `from` needs no alignment, so bytes are read at their offsets ---- */

static void decode_f32(const uint8_t *from, float *to, int64_t n) {
    memcpy(to, from, (size_t)n * sizeof *to);
}

FD_FOR_EACH_CPU static void decode_f16(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = f16_to_f32(load_u16(from + 2 * i));
}

FD_FOR_EACH_CPU static void decode_bf16(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = bf16_to_f32(load_u16(from + 2 * i));
}

/* Q8_0, 32 elements:  0 d  2 int8[32]                              value = d·q */
FD_FOR_EACH_CPU static void decode_q8_0(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 32, to += 32, from += sizeof(fd_block_q8_0)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q8_0, d)));
        const int8_t *q = (const int8_t *)from + offsetof(fd_block_q8_0, qs);
        for (int i = 0; i < 32; i++) to[i] = d * (float)q[i];
    }
}

/* Q4_0, 32 elements:  0 d  2 nibbles[16]                           value = d·(q − 8)
 * byte i: element i in the low nibble, element i + 16 in the high one */
FD_FOR_EACH_CPU static void decode_q4_0(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 32, to += 32, from += sizeof(fd_block_q4_0)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q4_0, d)));
        const uint8_t *q = from + offsetof(fd_block_q4_0, qs);
        for (int i = 0; i < 16; i++) to[i] = d * (float)((q[i] & 15) - 8);
        for (int i = 0; i < 16; i++) to[16 + i] = d * (float)((q[i] >> 4) - 8);
    }
}

/* Q5_0, 32 elements:  0 d  2 fifth bits[4]  6 nibbles[16]          value = d·(q − 16)
 * nibbles as in Q4_0; bit i of the 32 is element i's highest */
FD_FOR_EACH_CPU static void decode_q5_0(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 32, to += 32, from += sizeof(fd_block_q5_0)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q5_0, d)));
        const uint8_t *q = from + offsetof(fd_block_q5_0, qs);
        uint32_t high;
        memcpy(&high, from + offsetof(fd_block_q5_0, qh), sizeof high);
        for (int i = 0; i < 16; i++) to[i] = d * (float)((int)((q[i] & 15) | (high >> i & 1) << 4) - 16);
        for (int i = 0; i < 16; i++) to[16 + i] = d * (float)((int)((q[i] >> 4) | (high >> (16 + i) & 1) << 4) - 16);
    }
}

/* Q4_K, 256 elements:  0 d  2 dmin  4 scales[12]  16 nibbles[128]   value = (d·scale)·q − (dmin·min)
 * Eight groups of 32 with a 6-bit scale s and min m each, packed into the 12 bytes (bits 7…0):
 *    byte j     (j < 4)   s[j+4] bits 5-4, s[j]        byte j + 4   m[j+4] bits 5-4, m[j]
 *    byte j + 8           m[j+4] bits 3-0, s[j+4] bits 3-0
 * Nibble bytes 32p … 32p+31: group 2p low, group 2p + 1 high. */
FD_FOR_EACH_CPU static void decode_q4_k(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_q4_K)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q4_K, d)));
        const float dmin = f16_to_f32(load_u16(from + offsetof(fd_block_q4_K, dmin)));
        const uint8_t *packed = from + offsetof(fd_block_q4_K, scales), *q = from + offsetof(fd_block_q4_K, qs);
        float scale[8], min[8];
        for (int j = 0; j < 4; j++) {
            scale[j] = d * (float)(packed[j] & 63);
            min[j] = dmin * (float)(packed[j + 4] & 63);
            scale[j + 4] = d * (float)((packed[j + 8] & 15) | (packed[j] >> 6 << 4));
            min[j + 4] = dmin * (float)((packed[j + 8] >> 4) | (packed[j + 4] >> 6 << 4));
        }
        for (int pair = 0; pair < 8; pair += 2, q += 32, to += 64) {
            for (int i = 0; i < 32; i++) to[i] = scale[pair] * (float)(q[i] & 15) - min[pair];
            for (int i = 0; i < 32; i++) to[32 + i] = scale[pair + 1] * (float)(q[i] >> 4) - min[pair + 1];
        }
    }
}

/* Q6_K, 256 elements:  0 low nibbles[128]  128 high bit pairs[64]  192 int8 scales[16]  208 d    value = (d·scale)·(q −
 * 32) Two halves of 128 elements in four quarters of 32. Quarter k, element i: its low bits are in nibble byte i + 32(k
 * mod 2), low nibble for k < 2, else high; its high bits are bits 2k+1 … 2k of pair byte i. A scale: 16 elements. */
FD_FOR_EACH_CPU static void decode_q6_k(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (; n > 0; n -= 256, from += sizeof(fd_block_q6_K)) {
        const float d = f16_to_f32(load_u16(from + offsetof(fd_block_q6_K, d)));
        const uint8_t *low = from + offsetof(fd_block_q6_K, ql), *high = from + offsetof(fd_block_q6_K, qh);
        const int8_t *scales = (const int8_t *)from + offsetof(fd_block_q6_K, scales);
        for (int half = 0; half < 2; half++, low += 64, high += 32) {
            for (int quarter = 0; quarter < 4; quarter++, scales += 2, to += 32) {
                const uint8_t *nibbles = low + 32 * (quarter & 1);
                const int low_shift = quarter < 2 ? 0 : 4, high_shift = 2 * quarter;
                const float scale[2] = {d * (float)scales[0], d * (float)scales[1]};
                for (int part = 0; part < 2; part++)
                    for (int i = 16 * part; i < 16 * part + 16; i++) {
                        int q = (nibbles[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
                        to[i] = scale[part] * (float)(q - 32);
                    }
            }
        }
    }
}

/* ---- encoding ---- */

static void encode_f32(const float *from, uint8_t *to, int64_t n) {
    memcpy(to, from, (size_t)n * sizeof *from);
}

FD_FOR_EACH_CPU static void encode_f16(const float *restrict from, uint8_t *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t half = f32_to_f16(from[i]);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}

FD_FOR_EACH_CPU static void encode_bf16(const float *restrict from, uint8_t *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t half = f32_to_bf16(from[i]);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}

/* What the reciprocal of a scale is multiplied with; neither NaN nor overflow may reach a conversion to int. */
static inline float clamp(float value, float low, float high) {
    if (!(value >= low)) return low; /* NaN too: its block's scale is NaN then, so the integer does not matter */
    return value > high ? high : value;
}

/* d = absmax / 127, q = x / d rounded half away from zero. A NaN anywhere makes d NaN: as integers, the magnitudes of
 * floats are in order and NaN is above them all. */
FD_FOR_EACH_CPU static void encode_q8_0(const float *restrict from, uint8_t *restrict to, int64_t n) {
    /* Adding the float below 0.5 and cutting off rounds half away from zero; adding 0.5 would carry 0.49999997 to 1. */
    const float below_half = 0x1.fffffep-2f;
    for (; n > 0; n -= 32, from += 32, to += sizeof(fd_block_q8_0)) {
        int32_t largest = 0;
        for (int i = 0; i < 32; i++) {
            int32_t magnitude = (int32_t)(bits_of(from[i]) & 0x7fffffffu);
            largest = magnitude > largest ? magnitude : largest;
        }
        const float d = float_of((uint32_t)largest) / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
        const uint16_t stored = f32_to_f16(d);
        memcpy(to + offsetof(fd_block_q8_0, d), &stored, sizeof stored);
        int8_t *q = (int8_t *)to + offsetof(fd_block_q8_0, qs);
        for (int i = 0; i < 32; i++) {
            float x = clamp(from[i] * inverse, -127.0f, 127.0f);
            q[i] = (int8_t)(int)(x < 0.0f ? x - below_half : x + below_half);
        }
    }
}

/* d = m / −8 for the m of largest magnitude (the first of equals), so that m itself becomes −8, the end of the lopsided
 * range; q = x / d + 8.5, cut off, at most 15. */
FD_FOR_EACH_CPU static void encode_q4_0(const float *restrict from, uint8_t *restrict to, int64_t n) {
    for (; n > 0; n -= 32, from += 32, to += sizeof(fd_block_q4_0)) {
        uint32_t largest = 0;
        float extreme = 0.0f;
        for (int i = 0; i < 32; i++) {
            uint32_t magnitude = bits_of(from[i]) & 0x7fffffffu;
            extreme = magnitude > largest ? from[i] : extreme;
            largest = magnitude > largest ? magnitude : largest;
        }
        const float d = extreme / -8.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
        const uint16_t stored = f32_to_f16(d);
        memcpy(to + offsetof(fd_block_q4_0, d), &stored, sizeof stored);
        uint8_t *q = to + offsetof(fd_block_q4_0, qs);
        for (int i = 0; i < 16; i++) {
            int low = (int)clamp(from[i] * inverse + 8.5f, 0.0f, 15.0f);
            int high = (int)clamp(from[16 + i] * inverse + 8.5f, 0.0f, 15.0f);
            q[i] = (uint8_t)(low | high << 4);
        }
    }
}

/* ---- the table ---- */

static const struct {
    void (*decode)(const uint8_t *from, float *to, int64_t n);
    void (*encode)(const float *from, uint8_t *to, int64_t n);
} formats[FD_DTYPE_LIMIT] = {
    [FD_F32] = {decode_f32, encode_f32},    [FD_F16] = {decode_f16, encode_f16},
    [FD_BF16] = {decode_bf16, encode_bf16}, [FD_Q8_0] = {decode_q8_0, encode_q8_0},
    [FD_Q4_0] = {decode_q4_0, encode_q4_0}, [FD_Q4_K] = {decode_q4_k, NULL},
    [FD_Q6_K] = {decode_q6_k, NULL},        [FD_Q5_0] = {decode_q5_0, NULL},
};

bool fd_can_dequantize(uint32_t dtype) {
    return dtype < FD_DTYPE_LIMIT && formats[dtype].decode;
}
bool fd_can_quantize(uint32_t dtype) {
    return dtype < FD_DTYPE_LIMIT && formats[dtype].encode;
}

void fd_dequantize_row(uint32_t dtype, const void *src, float *dst, int64_t n) {
    assert(fd_can_dequantize(dtype) && fd_dtype_row_bytes(dtype, n) >= 0);
    formats[dtype].decode(src, dst, n);
}

void fd_quantize_row(uint32_t dtype, const float *src, void *dst, int64_t n) {
    assert(fd_can_quantize(dtype) && fd_dtype_row_bytes(dtype, n) >= 0);
    formats[dtype].encode(src, dst, n);
}

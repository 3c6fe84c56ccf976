/* 16-bit floats to binary32 and back, for hot loops; model/gguf/quant.h has them as functions. */
#ifndef FD_MODEL_GGUF_FLOAT16_H
#define FD_MODEL_GGUF_FLOAT16_H

#include <stdint.h>
#include <string.h>

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

/* f16_to_f32(f32_to_f16(value)) without a branch, so that a loop of it is one of vectors; a NaN keeps its payload. */
static inline float f32_through_f16(float value) {
    const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu;
    const uint32_t rounded = (magnitude + 0xfffu + (magnitude >> 13 & 1u)) & ~0x1fffu;
    const uint32_t normal = rounded >= bits_of(65536.0f) ? 0x7f800000u : rounded;
    const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f - 0.5f); /* as in f32_to_f16 */
    const uint32_t half = magnitude < bits_of(0x1p-14f) ? subnormal : normal;
    return float_of((bits & 0x80000000u) | (magnitude > 0x7f800000u ? magnitude : half));
}

static inline uint16_t f32_to_bf16(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* quiet, or rounding could make it Inf */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif

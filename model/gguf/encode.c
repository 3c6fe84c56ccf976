/* Rounding to the formats that tools and activations need: ggml's reference algorithms. */
#include <math.h>
#include <stddef.h>

#include "base/clones.h"
#include "base/levels.h"
#include "model/gguf/float16.h"
#include "model/gguf/formats.h"

void fd_encode_f32(const float *from, uint8_t *to, int64_t n) {
    memcpy(to, from, (size_t)n * sizeof *from);
}

FD_FOR_EACH_CPU void fd_encode_f16(const float *restrict from, uint8_t *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t half = f32_to_f16(from[i]);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}

FD_FOR_EACH_CPU void fd_encode_bf16(const float *restrict from, uint8_t *restrict to, int64_t n) {
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
FD_FOR_EACH_CPU void fd_encode_q8_0(const float *restrict from, uint8_t *restrict to, int64_t n) {
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

/* The element of largest magnitude, the first of equals; a NaN is larger than any number. */
static inline float extreme_of(const float *from) {
    uint32_t largest = 0;
    float extreme = 0.0f;
    for (int i = 0; i < 32; i++) {
        uint32_t magnitude = bits_of(from[i]) & 0x7fffffffu;
        extreme = magnitude > largest ? from[i] : extreme;
        largest = magnitude > largest ? magnitude : largest;
    }
    return extreme;
}

/* d = m / −8 for the m of largest magnitude, so that m itself becomes −8, the end of the lopsided range; q = x / d + 8.5,
 * cut off, at most 15. */
FD_FOR_EACH_CPU void fd_encode_q4_0(const float *restrict from, uint8_t *restrict to, int64_t n) {
    for (; n > 0; n -= 32, from += 32, to += sizeof(fd_block_q4_0)) {
        const float d = extreme_of(from) / -8.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
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

/* Nibbles and fifth bits of 32 integers; fifth NULL: four bits alone. */
static inline void store_bits(const uint8_t *values, uint8_t *nibbles, uint8_t *fifth) {
    uint32_t high = 0;
    for (int i = 0; i < 16; i++) nibbles[i] = (uint8_t)((values[i] & 15) | values[16 + i] << 4);
    for (int i = 0; i < 32; i++) high |= (uint32_t)(values[i] >> 4) << i;
    if (fifth) memcpy(fifth, &high, sizeof high);
}

/* As Q4_0, with −16 and at most 31. */
FD_FOR_EACH_CPU void fd_encode_q5_0(const float *restrict from, uint8_t *restrict to, int64_t n) {
    for (; n > 0; n -= 32, from += 32, to += sizeof(fd_block_q5_0)) {
        const float d = extreme_of(from) / -16.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
        const uint16_t stored = f32_to_f16(d);
        uint8_t values[32];
        memcpy(to + offsetof(fd_block_q5_0, d), &stored, sizeof stored);
        for (int i = 0; i < 32; i++) values[i] = (uint8_t)(int)clamp(from[i] * inverse + 16.5f, 0.0f, 31.0f);
        store_bits(values, to + offsetof(fd_block_q5_0, qs), to + offsetof(fd_block_q5_0, qh));
    }
}

/* d = (max − min) / most, q = (x − min) / d + 0.5, cut off. `to`: d, then min. A NaN or an infinity makes d NaN. */
static inline void encode_from_min(const float *from, float most, uint8_t *to, uint8_t *values) {
    float min = from[0], max = from[0], bad = 0.0f;
    for (int i = 0; i < 32; i++) {
        min = from[i] < min ? from[i] : min;
        max = from[i] > max ? from[i] : max;
        bad += from[i] - from[i]; /* 0, or NaN for what is not finite */
    }
    const float d = (max - min) / most + bad, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    const uint16_t stored[2] = {f32_to_f16(d), f32_to_f16(min)};
    memcpy(to, stored, sizeof stored);
    for (int i = 0; i < 32; i++) values[i] = (uint8_t)(int)clamp((from[i] - min) * inverse + 0.5f, 0.0f, most);
}

FD_FOR_EACH_CPU void fd_encode_q4_1(const float *restrict from, uint8_t *restrict to, int64_t n) {
    for (; n > 0; n -= 32, from += 32, to += sizeof(fd_block_q4_1)) {
        uint8_t values[32];
        encode_from_min(from, 15.0f, to, values);
        store_bits(values, to + offsetof(fd_block_q4_1, qs), NULL);
    }
}

FD_FOR_EACH_CPU void fd_encode_q5_1(const float *restrict from, uint8_t *restrict to, int64_t n) {
    for (; n > 0; n -= 32, from += 32, to += sizeof(fd_block_q5_1)) {
        uint8_t values[32];
        encode_from_min(from, 31.0f, to, values);
        store_bits(values, to + offsetof(fd_block_q5_1, qs), to + offsetof(fd_block_q5_1, qh));
    }
}

static const int8_t iq4_levels[16] = {FD_IQ4_LEVELS};

/* The level nearest to x, of two that are as near the upper one. */
static inline int nearest_level(float x) {
    int i = 0;
    while (i < 15 && !(x - (float)iq4_levels[i] < (float)iq4_levels[i + 1] - x)) i++;
    return i;
}

/* Levels by d = m / −127 for the m of largest magnitude, which then is the lowest; kept is the d that leaves least of the squares, each
 * weighed by its own. A block of next to nothing is zeros. */
void fd_encode_iq4_nl(const float *restrict from, uint8_t *restrict to, int64_t n) {
    const float next_to_nothing = 1e-15f;
    for (; n > 0; n -= 32, from += 32, to += sizeof(fd_block_iq4_nl)) {
        const float extreme = extreme_of(from), inverse = (float)iq4_levels[0] / extreme;
        const bool nothing = fabsf(extreme) < next_to_nothing;
        uint8_t values[32] = {0};
        float with_x = 0.0f, with_level = 0.0f;
        for (int i = 0; i < 32 && !nothing; i++) {
            const float weight = from[i] * from[i];
            values[i] = (uint8_t)nearest_level(from[i] * inverse);
            const float level = (float)iq4_levels[values[i]];
            with_x += weight * level * from[i];
            with_level += weight * level * level;
        }
        const uint16_t stored = f32_to_f16(with_level > 0.0f ? with_x / with_level : nothing ? 0.0f : NAN);
        memcpy(to + offsetof(fd_block_iq4_nl, d), &stored, sizeof stored);
        store_bits(values, to + offsetof(fd_block_iq4_nl, qs), NULL);
    }
}

#include "model/gguf_writer/block_scales.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/dtype.h"
#include "model/gguf/quant.h"

/* Where the binary16 scales are; what deviation random bits have with d = 1, measured on 10^5 to 10^6 elements; dmin of
 * the mean zero with d = 1. */
typedef struct scales {
    int16_t d_at, dmin_at; /* -1: none, or none as a binary16 */
    float deviation, dmin;
} scales;

static const scales table[FD_DTYPE_LIMIT] = {
    [FD_Q4_0] = {0, -1, 4.61f, 0},     [FD_Q4_1] = {0, 2, 4.61f, -7.5f}, [FD_Q5_0] = {0, -1, 9.23f, 0},
    [FD_Q5_1] = {0, 2, 9.23f, -15.5f}, [FD_Q8_0] = {0, -1, 74, 0},       [FD_Q2_K] = {80, 82, 13.8f, 1.5f},
    [FD_Q3_K] = {108, -1, 43.4f, 0},   [FD_Q4_K] = {0, 2, 258, 7.5f},    [FD_Q5_K] = {0, 2, 527, 15.5f},
    [FD_Q6_K] = {208, -1, 1365, 0},    [FD_IQ1_S] = {0, -1, 7.2f, 0},    [FD_IQ1_M] = {-1, -1, 7.2f, 0},
    [FD_IQ2_XXS] = {0, -1, 53.4f, 0},  [FD_IQ2_XS] = {0, -1, 56, 0},     [FD_IQ2_S] = {0, -1, 56.4f, 0},
    [FD_IQ3_XXS] = {0, -1, 142.7f, 0}, [FD_IQ3_S] = {0, -1, 140.4f, 0},  [FD_IQ4_NL] = {0, -1, 67.4f, 0},
    [FD_IQ4_XS] = {0, -1, 1243, 0},    [FD_TQ1_0] = {52, -1, 0.82f, 0},  [FD_TQ2_0] = {64, -1, 1.22f, 0},
    [FD_MXFP4] = {-1, -1, 5.84f, 0},   [FD_NVFP4] = {-1, -1, 8.6f, 0},
};

static int power_of_two(float d) {
    return d != 0 && isfinite(d) ? ilogbf(d) : -200;
}

static uint8_t clamped(int value, int most) {
    return (uint8_t)(value < 0 ? 0 : value > most ? most : value);
}

void block_set_scales(uint32_t dtype, void *block, float d, float dmin) {
    const scales *s = &table[dtype];
    const uint16_t half = fd_f32_to_f16(d), half_min = fd_f32_to_f16(dmin);
    uint8_t *bytes = block;
    assert(s->deviation > 0);
    if (s->d_at >= 0) memcpy(bytes + s->d_at, &half, sizeof half);
    if (s->dmin_at >= 0) memcpy(bytes + s->dmin_at, &half_min, sizeof half_min);
    if (dtype == FD_IQ1_M) /* four bits in each of four words */
        for (int i = 0; i < 4; i++) {
            uint8_t *high = bytes + offsetof(fd_block_iq1_m, scales) + 2 * i + 1;
            *high = (uint8_t)((*high & 15) | (half >> 4 * i & 15) << 4);
        }
    if (dtype == FD_MXFP4) bytes[offsetof(fd_block_mxfp4, e)] = clamped(power_of_two(d) + 128, 200);
    if (dtype == FD_NVFP4)
        for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(clamped(power_of_two(d) + 8, 15) << 3 | (bytes[i] & 7));
}

void blocks_set_deviation(uint32_t dtype, void *blocks, int64_t n_block, float deviation) {
    const float d = deviation / table[dtype].deviation;
    const int64_t size = fd_dtype_get(dtype)->block_bytes;
    for (int64_t i = 0; i < n_block; i++) block_set_scales(dtype, (char *)blocks + i * size, d, d * table[dtype].dmin);
}

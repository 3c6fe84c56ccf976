/* Blocks of 32 as integers and scales, for the products of `q8act`: activations by numerics/q8act.h, weights by their
 * format (layouts: model/gguf/quant.h, drawn in model/gguf/quant.c). */
#ifndef FD_REFERENCE_CPU_Q8ACT_BLOCKS_H
#define FD_REFERENCE_CPU_Q8ACT_BLOCKS_H

#include "model/gguf/quant.h"
#include "numerics/q8act.h"
#include "reference_cpu/ops.h"

/* 32 activations: x ≈ d·q; sum is d·Σq. */
typedef struct fd_q8_x {
    int8_t q[FD_Q8_BLOCK];
    float d, sum;
} fd_q8_x;

/* 32 weights: w = a[0]·q (a[1]·q for the last 16) − b. The formats without a minimum have b = 0 and do not subtract. */
typedef struct fd_q8_w {
    int8_t q[FD_Q8_BLOCK];
    float a[2], b;
} fd_q8_w;

/* The other quantised types have the exact products, on the GPU too (kernels/int8/q8.h, fd_q8_can). */
static inline bool fd_q8_takes(const fd_weight *w) {
    const uint32_t dtype = w->dtype;
    return dtype == FD_Q8_0 || dtype == FD_Q4_0 || dtype == FD_Q5_0 || dtype == FD_Q4_K || dtype == FD_Q6_K;
}
static inline bool fd_q8_has_minimum(uint32_t dtype) {
    return dtype == FD_Q4_K;
}
static inline bool fd_q8_has_halves(uint32_t dtype) {
    return dtype == FD_Q6_K;
} /* a scale for each 16 */

static inline void fd_q8_quantize(const float *x, fd_q8_x *to) {
    float largest = 0.0f;
    int32_t sum = 0;
    for (int i = 0; i < FD_Q8_BLOCK; i++) largest = fd_q8_larger(largest, x[i]);
    float inverse = fd_q8_inverse(largest);
    for (int i = 0; i < FD_Q8_BLOCK; i++) {
        int32_t q = fd_q8_round(x[i], inverse);
        to->q[i] = (int8_t)q;
        sum += q;
    }
    to->d = fd_q8_scale(largest);
    to->sum = fd_q8_sum(to->d, sum);
}

/* Block `at` of a row. */
static inline void fd_q8_weights(uint32_t dtype, const void *row, int64_t at, fd_q8_w *to) {
    to->b = 0.0f;
    if (dtype == FD_Q8_0) {
        const fd_block_q8_0 *from = (const fd_block_q8_0 *)row + at;
        to->a[0] = to->a[1] = fd_f16_to_f32(from->d);
        memcpy(to->q, from->qs, sizeof to->q);
    } else if (dtype == FD_Q4_0) {
        const fd_block_q4_0 *from = (const fd_block_q4_0 *)row + at;
        to->a[0] = to->a[1] = fd_f16_to_f32(from->d);
        for (int i = 0; i < 16; i++) {
            to->q[i] = (int8_t)((from->qs[i] & 15) - 8);
            to->q[i + 16] = (int8_t)((from->qs[i] >> 4) - 8);
        }
    } else if (dtype == FD_Q5_0) {
        const fd_block_q5_0 *from = (const fd_block_q5_0 *)row + at;
        to->a[0] = to->a[1] = fd_f16_to_f32(from->d);
        for (int i = 0; i < 32; i++) {
            int nibble = i < 16 ? from->qs[i] & 15 : from->qs[i - 16] >> 4;
            to->q[i] = (int8_t)((nibble | (from->qh[i / 8] >> i % 8 & 1) << 4) - 16);
        }
    } else if (dtype == FD_Q4_K) {
        const fd_block_q4_K *from = (const fd_block_q4_K *)row + at / 8;
        const uint8_t *s = from->scales, *nibbles = from->qs + at % 8 / 2 * 32;
        int j = (int)(at % 8), low = j % 4;
        int scale = j < 4 ? s[j] & 63 : (s[low + 8] & 15) | s[low] >> 6 << 4;
        int min = j < 4 ? s[j + 4] & 63 : s[low + 8] >> 4 | s[low + 4] >> 6 << 4;
        to->a[0] = to->a[1] = fd_f16_to_f32(from->d) * (float)scale;
        to->b = fd_f16_to_f32(from->dmin) * (float)min;
        for (int i = 0; i < 32; i++) to->q[i] = (int8_t)(j % 2 ? nibbles[i] >> 4 : nibbles[i] & 15);
    } else { /* Q6_K */
        const fd_block_q6_K *from = (const fd_block_q6_K *)row + at / 8;
        int half = (int)(at % 8 / 4), quarter = (int)(at % 4);
        const uint8_t *low = from->ql + 64 * half + 32 * (quarter & 1), *high = from->qh + 32 * half;
        for (int i = 0; i < 32; i++)
            to->q[i] = (int8_t)(((low[i] >> (quarter < 2 ? 0 : 4) & 15) | (high[i] >> 2 * quarter & 3) << 4) - 32);
        for (int i = 0; i < 2; i++) to->a[i] = fd_f16_to_f32(from->d) * (float)from->scales[8 * half + 2 * quarter + i];
    }
}

#endif

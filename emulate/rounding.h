/* Rounding binary32 to narrower types and back: nearest, ties to even, subnormals kept, NaN stays NaN. Without
 * branches, so that loops over weights vectorise. */
#ifndef FD_EMULATE_ROUNDING_H
#define FD_EMULATE_ROUNDING_H

#include "emulate/emulate.h"
#include "numerics/contract.h"

/* Drops the last `drop` bits of the mantissa. A carry runs into the exponent, which is right, up to Inf. */
static inline float fd_round_mantissa(float x, int drop) {
    uint32_t bits = fd_bits32(x), last = bits >> drop & 1u;
    uint32_t rounded = (bits + (1u << (drop - 1)) - 1u + last) & ~((1u << drop) - 1u);
    return x != x ? x : fd_from_bits32(rounded);
}

/* cvt.rn.tf32 of sm_90; cvt.rna of older GPUs differs in ties alone. */
static inline float fd_round_tf32(float x) {
    return fd_round_mantissa(x, 13);
}

static inline float fd_round_bf16(float x) {
    return fd_round_mantissa(x, 16);
}

static inline float fd_round_f16(float x) {
    float magnitude = fabsf(x);
    /* 0.5's last bit is 2^-24, and so is that of an f16 subnormal: the addition rounds, the subtraction is exact. */
    float small = (magnitude + 0.5f) - 0.5f;
    float normal = fd_round_mantissa(magnitude, 13);
    normal = normal >= 65536.0f ? (float)INFINITY : normal; /* from 65520 on, the carry has left f16's range */
    return copysignf(magnitude < 0x1p-14f ? small : normal, x);
}

static inline float fd_round_to(fd_emulate_type type, float x) {
    switch (type) {
    case FD_EMULATE_TF32: return fd_round_tf32(x);
    case FD_EMULATE_F16: return fd_round_f16(x);
    case FD_EMULATE_BF16: return fd_round_bf16(x);
    case FD_EMULATE_F32:
    case FD_EMULATE_OF_WEIGHT:
    case FD_EMULATE_OF_WEIGHT_CUDA: break;
    }
    return x;
}

/* n elements; `out` may be `x`. */
void fd_round_row(fd_emulate_type type, const float *x, float *out, int64_t n);

#endif

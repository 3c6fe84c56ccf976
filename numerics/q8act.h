/* The numerics contract for `q8act`: how a matrix product with quantised weights is made of integers
 * (docs/numerics.md).
 *
 * The activations of a row become int8 in blocks of 32 with a binary32 scale each; a weight block of 32 (of 16 in Q6_K)
 * has integers q, a scale a and, in Q4_K, a minimum b. The dot of two blocks of integers is exact, so its order is
 * free: dp4a, tensor cores and scalar C agree. What rounds is one product and one fused multiply-add a block, in the
 * order below.
 *
 * Like contract.h: one header for C and nvcc, nothing but correctly rounded operations. */
#ifndef FD_NUMERICS_Q8ACT_H
#define FD_NUMERICS_Q8ACT_H

#include "numerics/contract.h"

/* ---- a block of 32 activations: x ≈ d·q ---- */

enum { FD_Q8_BLOCK = 32 };

/* Blocks whose largest magnitude is below this are zeros: 127 over it must be a number. */
#define FD_Q8_LEAST 0x1p-96f

/* The larger magnitude of the two, NaN above all: as integers, the magnitudes of floats are in order. From +0. */
FD_HD float fd_q8_larger(float largest, float x) {
    uint32_t a = fd_bits32(largest), b = fd_bits32(x) & 0x7fffffffu;
    return fd_from_bits32(a > b ? a : b);
}

/* d of a block, from its largest magnitude: largest / 127; 0 below FD_Q8_LEAST; NaN where an element is infinite or
 * NaN, so that every output which reads the block is NaN. */
FD_HD float fd_q8_scale(float largest) {
    if (largest < FD_Q8_LEAST) return 0.0f;
    return largest < (float)INFINITY ? largest / 127.0f : fd_from_bits32(0x7fc00000u);
}

/* What the elements of the block are multiplied with before they are rounded; 0 where the integers do not matter. */
FD_HD float fd_q8_inverse(float largest) {
    return largest >= FD_Q8_LEAST && largest < (float)INFINITY ? 127.0f / largest : 0.0f;
}

/* q in -127 … 127: ties to even, as llama.cpp's vectorised CPU code and a GPU's conversion round. */
FD_HD int32_t fd_q8_round(float x, float inverse) {
    return inverse == 0.0f ? 0 : (int32_t)rintf(x * inverse);
}

/* d·Σq, what a minimum is multiplied with. |Σq| ≤ 4064 is exact. */
FD_HD float fd_q8_sum(float d, int32_t sum_of_q) {
    return d * (float)sum_of_q;
}

/* ---- a row of weights times a row of activations: two partial sums ---- */

/* Partial j takes the blocks ≡ j (mod 2) in rising order, from +0; the dot is partial 0 + partial 1, the bias one
 * addition more. Two: tensor cores then need two accumulators an output, held by two halves of a thread block, and as
 * many lanes as one likes may share the integers of a matrix-vector product. */
enum { FD_Q8_PARTIALS = 2 };

/* 1.5·2^23: added to an integer s below 2^22 in magnitude it makes the float whose last bits are s, so that a GPU which
 * starts an integer sum at these bits has the float without converting. */
#define FD_Q8_MAGIC      12582912.0f
#define FD_Q8_MAGIC_BITS 0x4b400000

/* a·s for a finite a, rounded once: magic·a is exact (a has at most 18 significant bits: f16 scales times 7-bit
 * integers). NaN for an infinite one. `magic_s` is the float of FD_Q8_MAGIC_BITS + s. */
FD_HD float fd_q8_times(float magic_s, float a) {
    return fmaf(magic_s, a, -FD_Q8_MAGIC * a);
}

/* One block: acc + (a·s)·d, s the dot of the integers, |s| ≤ 520,192. */
FD_HD float fd_q8_add(float acc, int32_t s, float a, float d) {
    return fmaf(fd_q8_times(fd_from_bits32((uint32_t)(FD_Q8_MAGIC_BITS + s)), a), d, acc);
}

/* The block's minimum, after that: acc − b·(d·Σq); `sum` is fd_q8_sum. */
FD_HD float fd_q8_subtract(float acc, float b, float sum) {
    return fmaf(-b, sum, acc);
}

#endif

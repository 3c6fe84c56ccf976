/* Dots of a few rows of weights with one vector: the 64 partial sums live in registers, V_GROUPS vectors a row, and
 * as many rows go together as make VL vectors, so that v_pair_sums reduces them at once (4 rows with 16 lanes, 1 with
 * 8). */
#ifndef FD_REFERENCE_CPU_SIMD_DOT_H
#define FD_REFERENCE_CPU_SIMD_DOT_H

#include "reference_cpu/simd.h"

enum { DOT_ROWS = VL / V_GROUPS };

/* The formats that are decoded in registers; the others are decoded to memory first, a row at a time. */
FD_INLINE bool decodes_in_registers(uint32_t dtype) {
    return dtype == FD_F32 || dtype == FD_F16 || dtype == FD_BF16 || dtype == FD_Q8_0 || dtype == FD_Q4_0;
}

/* Elements [64·block + VL·g, … + VL) of a row, by the formulas of model/gguf/quant.c. `dtype` is a constant where this
 * is inlined. Lanes past `m` are 0 (m < VL only at the end of a row of floats: the others' blocks hold 32 elements). */
FD_INLINE vf weight_vector(uint32_t dtype, const char *row, int64_t block, int g, int64_t m) {
    const char *p = row;
    if (dtype == FD_F32) {
        p += (int64_t)sizeof(float) * (FD_PARTIALS * block + VL * g);
        return m < VL ? v_load_part(p, m) : v_load_stream(p);
    }
    if (dtype == FD_F16 || dtype == FD_BF16) {
        uint16_t padded[VL] = {0};
        p += (int64_t)sizeof(uint16_t) * (FD_PARTIALS * block + VL * g);
        if (m < VL) p = memcpy(padded, p, sizeof(uint16_t) * (size_t)m);
        return dtype == FD_F16 ? v_from_f16(p) : v_from_bf16(p);
    }
    int at = VL * g % 32;
    if (dtype == FD_Q8_0) {
        p += (int64_t)sizeof(fd_block_q8_0) * (2 * block + VL * g / 32);
        return f16_at(p) * v_from_i8((const int8_t *)p + offsetof(fd_block_q8_0, qs) + at);
    }
    p += (int64_t)sizeof(fd_block_q4_0) * (2 * block + VL * g / 32);
    return f16_at(p) * v_from_nibbles((const uint8_t *)p + offsetof(fd_block_q4_0, qs) + at % 16, at >= 16);
}

/* Rows follow one another in memory, and the hardware's prefetchers begin anew at every page of 4 KiB: each block asks for
 * its own place one page on. A decode of an F32 model of 288 was 1.05 times a plain loop and is 1.2 times with it. */
FD_INLINE void prefetch_next_page(const char *block) {
#pragma GCC unroll 4
    for (int line = 0; line < 4; line++) __builtin_prefetch(block + 4096 + 64 * line);
}

/* The 64 partial sums of row·x over n elements. */
FD_INLINE void partial_sums(uint32_t dtype, const char *row, const float *x, int64_t n, vf a[V_GROUPS]) {
    int64_t n_block = n / FD_PARTIALS, rest = n % FD_PARTIALS;
#pragma GCC unroll 16
    for (int g = 0; g < V_GROUPS; g++) a[g] = (vf){0};
    for (int64_t block = 0; block < n_block; block++) {
        if (dtype == FD_F32) prefetch_next_page(row + (int64_t)sizeof(float) * FD_PARTIALS * block);
#pragma GCC unroll 16
        for (int g = 0; g < V_GROUPS; g++)
            a[g] = v_fma(weight_vector(dtype, row, block, g, VL), v_load(x + FD_PARTIALS * block + VL * g), a[g]);
    }
    if (rest > 0)
#pragma GCC unroll 16
        for (int g = 0; g < V_GROUPS; g++) {
            int64_t m = rest - VL * g < VL ? rest - VL * g : VL;
            const float *from = x + FD_PARTIALS * n_block + VL * g;
            if (m <= 0) continue;
            if (m == VL) {
                a[g] = v_fma(weight_vector(dtype, row, n_block, g, VL), v_load(from), a[g]);
                continue;
            }
            /* elements past n take part in nothing: their lanes keep the sum they have, even a -0 */
            a[g] = v_first(m, v_fma(weight_vector(dtype, row, n_block, g, m), v_load_part(from, m), a[g]), a[g]);
        }
}

/* The totals of DOT_ROWS rows' partial sums, which it overwrites. */
FD_INLINE void row_totals(vf acc[VL], float *out) {
    float total[VL]; /* [DOT_ROWS][V_GROUPS]: each vector's total of its VL partial sums */
    v_store(total, v_pair_sums(acc));
#pragma GCC unroll 16
    for (int r = 0; r < DOT_ROWS; r++) {
        float *t = total + r * V_GROUPS;
#pragma GCC unroll 16
        for (int m = V_GROUPS; m > 1; m /= 2)
#pragma GCC unroll 16
            for (int i = 0; i < m / 2; i++) t[i] = t[2 * i] + t[2 * i + 1];
        out[r] = t[0];
    }
}

/* out[r] = rows[r]·x over n elements. The rows are read one behind the other: that is how they lie in memory, and a
 * single stream is what prefetchers follow (four at once ran at half the speed of memory with rows of 288). One loop reads
 * them all, because prefetchers know a stream by the instruction that loads it: by four copies of the loop, rows of Q8_0
 * came at a quarter of the speed of memory. */
FD_INLINE void dot_rows(uint32_t dtype, const char *const rows[DOT_ROWS], const float *x, int64_t n, float *out) {
    vf acc[VL];
#pragma GCC unroll 1
    for (int r = 0; r < DOT_ROWS; r++) {
        vf a[V_GROUPS];
        partial_sums(dtype, rows[r], x, n, a);
#pragma GCC unroll 16
        for (int g = 0; g < V_GROUPS; g++) acc[r * V_GROUPS + g] = a[g];
    }
    row_totals(acc, out);
}

/* One dot of binary32 vectors, where there is but one. */
FD_INLINE float dot_one(const float *w, const float *x, int64_t n) {
    float a[FD_PARTIALS];
    vf acc[V_GROUPS];
    int64_t whole = n - n % FD_PARTIALS;
#pragma GCC unroll 16
    for (int g = 0; g < V_GROUPS; g++) acc[g] = (vf){0};
    for (int64_t k = 0; k < whole; k += FD_PARTIALS)
#pragma GCC unroll 16
        for (int g = 0; g < V_GROUPS; g++) acc[g] = v_fma(v_load(w + k + VL * g), v_load(x + k + VL * g), acc[g]);
#pragma GCC unroll 16
    for (int g = 0; g < V_GROUPS; g++) v_store(a + VL * g, acc[g]);
    for (int64_t k = whole; k < n; k++) a[k - whole] = fmaf(w[k], x[k], a[k - whole]);
    return fd_tree64(a);
}

/* Σ x[k] in the same order. */
FD_INLINE float sum_one(const float *x, int64_t n) {
    float a[FD_PARTIALS];
    vf acc[V_GROUPS];
    int64_t whole = n - n % FD_PARTIALS;
#pragma GCC unroll 16
    for (int g = 0; g < V_GROUPS; g++) acc[g] = (vf){0};
    for (int64_t k = 0; k < whole; k += FD_PARTIALS)
#pragma GCC unroll 16
        for (int g = 0; g < V_GROUPS; g++) acc[g] = acc[g] + v_load(x + k + VL * g);
#pragma GCC unroll 16
    for (int g = 0; g < V_GROUPS; g++) v_store(a + VL * g, acc[g]);
    for (int64_t k = whole; k < n; k++) a[k - whole] = a[k - whole] + x[k];
    return fd_tree64(a);
}

#endif

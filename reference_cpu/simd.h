/* Vectors of binary32 for the vectorised kernels: 16 lanes with AVX-512 (and in the portable baseline), 8 with AVX2.
 * GCC's vector extensions carry the arithmetic; the few operations they lack (fma, rint, conversions) are named here
 * once per set.
 *
 * No function here adds in an order of its own choice: sums across lanes go through v_pair_sums, the contract's
 * neighbours-pair-up tree, so that any vector width gives the same bits. */
#ifndef FD_REFERENCE_CPU_SIMD_H
#define FD_REFERENCE_CPU_SIMD_H

#include <stddef.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "numerics/contract.h"
#include "reference_cpu/ops.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define FD_SIMD_PASTE_(a, b, c) a##_##b##_##c
#define FD_SIMD_PASTE(a, b, c)  FD_SIMD_PASTE_(a, b, c)
#define SIMD(name)              FD_SIMD_PASTE(fd_simd, name, FD_ISA)
/* The scalar kernel of an op, compiled for the same set. */
#define FD_SCALAR_PASTE_(a, b, c) a##_##b##_f32_##c
#define FD_SCALAR_PASTE(a, b, c)  FD_SCALAR_PASTE_(a, b, c)
#define SCALAR(name)              FD_SCALAR_PASTE(fd_ref, name, FD_ISA)

#define FD_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX2__) && !defined(__AVX512F__)
enum { VL = 8 };
#else
enum { VL = 16 };
#endif
enum { V_GROUPS = FD_PARTIALS / VL }; /* vectors that hold the 64 partial sums of one dot */

typedef float vf __attribute__((vector_size(VL * sizeof(float))));
typedef int32_t vi __attribute__((vector_size(VL * sizeof(int32_t))));

FD_INLINE vf v_load(const void *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* v_load for memory that is read once, in order: two 32-byte loads where a vector has 64 bytes. On Zen 4 they stream
 * F32 weights from memory 8 to 10 % faster than one of 64 (bench/cpu_ops), and GGUF aligns data to 32, so none crosses
 * a line. */
FD_INLINE vf v_load_stream(const void *p) {
#if defined(__AVX512F__)
    __m512 low = _mm512_castps256_ps512(_mm256_loadu_ps(p));
    return (vf)_mm512_insertf32x8(low, _mm256_loadu_ps((const float *)p + 8), 1);
#else
    return v_load(p);
#endif
}

FD_INLINE void v_store(float *p, vf v) {
    memcpy(p, &v, sizeof v);
}

FD_INLINE vf v_all(float x) {
    return x - (vf){0};
} /* x - 0 is x, -0 and NaN included */

FD_INLINE vi v_lane(void) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return (vi){0, 1, 2, 3, 4, 5, 6, 7};
#else
    return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#endif
}

/* The first m lanes, 0 in the rest; reads nothing past them. */
FD_INLINE vf v_load_part(const void *p, int64_t m) {
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << m) - 1), p);
#elif defined(__AVX2__)
    return (vf)_mm256_maskload_ps(p, (__m256i)(v_lane() < (int32_t)m));
#else
    vf v = {0};
    memcpy(&v, p, (size_t)m * sizeof(float));
    return v;
#endif
}

FD_INLINE void v_store_part(float *p, vf v, int64_t m) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << m) - 1), (__m512)v);
#elif defined(__AVX2__)
    _mm256_maskstore_ps(p, (__m256i)(v_lane() < (int32_t)m), (__m256)v);
#else
    memcpy(p, &v, (size_t)m * sizeof(float));
#endif
}

/* Lane by lane: mask ? a : b, where a mask lane is all ones or all zeros (what a comparison gives). */
FD_INLINE vf v_select(vi mask, vf a, vf b) {
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* a in the first m lanes, b in the others. */
FD_INLINE vf v_first(int64_t m, vf a, vf b) {
    return v_select(v_lane() < (int32_t)m, a, b);
}

FD_INLINE vf v_fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    vf r;
    for (int i = 0; i < VL; i++) r[i] = fmaf(a[i], b[i], c[i]);
    return r;
#endif
}

FD_INLINE vf v_rint(vf a) {
#if defined(__AVX512F__)
    return (vf)_mm512_roundscale_ps((__m512)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
    return (vf)_mm256_round_ps((__m256)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    vf r;
    for (int i = 0; i < VL; i++) r[i] = rintf(a[i]);
    return r;
#endif
}

/* VL halves, or VL int8, at p to binary32: exact. */
FD_INLINE vf v_from_f16(const void *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(p));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128(p));
#else
    vf r;
    for (int i = 0; i < VL; i++) {
        uint16_t half;
        memcpy(&half, (const char *)p + 2 * i, sizeof half);
        r[i] = fd_f16_to_f32(half);
    }
    return r;
#endif
}

FD_INLINE vf v_from_bf16(const void *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16);
#elif defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16);
#else
    vf r;
    for (int i = 0; i < VL; i++) {
        uint16_t half;
        memcpy(&half, (const char *)p + 2 * i, sizeof half);
        r[i] = fd_bf16_to_f32(half);
    }
    return r;
#endif
}

FD_INLINE vf v_from_i8(const int8_t *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
#else
    vf r;
    for (int i = 0; i < VL; i++) r[i] = (float)p[i];
    return r;
#endif
}

/* The nibbles of VL bytes, low or high ones, minus 8, as binary32: the integers of Q4_0. */
FD_INLINE vf v_from_nibbles(const uint8_t *p, bool high) {
#if defined(__AVX512F__)
    __m512i q = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
    q = high ? _mm512_srli_epi32(q, 4) : _mm512_and_si512(q, _mm512_set1_epi32(15));
    return (vf)_mm512_cvtepi32_ps(_mm512_sub_epi32(q, _mm512_set1_epi32(8)));
#elif defined(__AVX2__)
    __m256i q = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
    q = high ? _mm256_srli_epi32(q, 4) : _mm256_and_si256(q, _mm256_set1_epi32(15));
    return (vf)_mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_set1_epi32(8)));
#else
    vf r;
    for (int i = 0; i < VL; i++) r[i] = (float)((high ? p[i] >> 4 : p[i] & 15) - 8);
    return r;
#endif
}

FD_INLINE float f16_at(const void *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
#if defined(__AVX2__)
    return _cvtsh_ss(half);
#else
    return fd_f16_to_f32(half);
#endif
}

/* Rows [first, first + n_row) of a weight as a weight of n_col columns: one expert's matrix, or its bias as a row. */
FD_INLINE fd_weight weight_of_expert(const fd_weight *w, int64_t first, int64_t n_row, int64_t n_col) {
    return (fd_weight){.dtype = w->dtype,
                       .n_row = n_row,
                       .n_col = n_col,
                       .data = (const char *)w->data + first * fd_dtype_row_bytes(w->dtype, w->n_col)};
}

/* ---- the contract's tree across lanes ---- */

/* Sums of neighbouring lanes of a and of b. Twice within 128-bit lanes, then between them: after the two of the first
 * kind a 128-bit lane holds four vectors' totals of four, so the second kind pairs whole 128-bit lanes, and the order
 * comes out right: v_pair_sums below ends with lane i = total of vector i. */
#if defined(__AVX2__) && !defined(__AVX512F__)
#define FD_EVENS      0, 2, 8, 10, 4, 6, 12, 14
#define FD_ODDS       1, 3, 9, 11, 5, 7, 13, 15
#define FD_EVEN_QUADS 0, 1, 2, 3, 8, 9, 10, 11
#define FD_ODD_QUADS  4, 5, 6, 7, 12, 13, 14, 15
#else
#define FD_EVENS      0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30
#define FD_ODDS       1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31
#define FD_EVEN_QUADS 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define FD_ODD_QUADS  4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31
#endif

FD_INLINE vf v_pairs(vf a, vf b) {
    return __builtin_shufflevector(a, b, FD_EVENS) + __builtin_shufflevector(a, b, FD_ODDS);
}

FD_INLINE vf v_quad_pairs(vf a, vf b) {
    return __builtin_shufflevector(a, b, FD_EVEN_QUADS) + __builtin_shufflevector(a, b, FD_ODD_QUADS);
}

/* VL vectors to one: lane i is the total of a[i], its lanes paired as neighbours, log2(VL) times. Overwrites a. */
FD_INLINE vf v_pair_sums(vf a[VL]) {
#pragma GCC unroll 16
    for (int i = 0; i < VL / 2; i++) a[i] = v_pairs(a[2 * i], a[2 * i + 1]);
#pragma GCC unroll 16
    for (int i = 0; i < VL / 4; i++) a[i] = v_pairs(a[2 * i], a[2 * i + 1]);
#pragma GCC unroll 16
    for (int m = VL / 4; m > 1; m /= 2)
#pragma GCC unroll 16
        for (int i = 0; i < m / 2; i++) a[i] = v_quad_pairs(a[2 * i], a[2 * i + 1]);
    return a[0];
}

/* ---- fd_exp32 and fd_silu32, lane by lane the same operations ---- */

FD_INLINE vf v_exp(vf x) {
    vi in_range = (x > -103.97208f) & (x <= 88.72284f); /* false for NaN */
    vf y = v_select(in_range, x, (vf){0});              /* keeps the integers below within their range */
    vf n = v_rint(y * 1.44269504088896341f);
    vf r = v_fma(n, v_all(-0.693145751953125f), y);
    r = v_fma(n, v_all(-1.42860682030941723212e-6f), r);
    vf p = v_all(1.9875691500e-4f);
    p = v_fma(p, r, v_all(1.3981999507e-3f));
    p = v_fma(p, r, v_all(8.3334519073e-3f));
    p = v_fma(p, r, v_all(4.1665795894e-2f));
    p = v_fma(p, r, v_all(1.6666665459e-1f));
    p = v_fma(p, r, v_all(5.0000001201e-1f));
    p = v_fma(p, r * r, r) + 1.0f;
    vi exponent = __builtin_convertvector(n, vi);
    vi half = exponent / 2;
    p = p * (vf)((half + 127) << 23) * (vf)((exponent - half + 127) << 23);
    vf outside = v_select(x > 88.72284f, v_all((float)INFINITY), v_select(x != x, x, (vf){0}));
    return v_select(in_range, p, outside);
}

FD_INLINE vf v_silu(vf x) {
    return x / (1.0f + v_exp(-x));
}

#endif

/* The numerics contract, version 1 (docs/numerics.md): which IEEE-754 operations make every element, in which order.
 *
 * One header for the C compiler and nvcc. Everything here is built from + - * / sqrt fma, rint and conversions, which
 * are correctly rounded on both sides; nothing comes from libm or from CUDA's math library. Build flags that belong to
 * it: gcc/clang -ffp-contract=off; nvcc -fmad=false -ftz=false -prec-div=true -prec-sqrt=true. */
#ifndef FD_NUMERICS_CONTRACT_H
#define FD_NUMERICS_CONTRACT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define FD_CONTRACT_VERSION 1

#ifdef __CUDACC__
#define FD_HD __host__ __device__ static __forceinline__
#else
#define FD_HD static inline
#endif

/* ---- bits ---- */

FD_HD uint32_t fd_bits32(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

FD_HD float fd_from_bits32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

FD_HD uint64_t fd_bits64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

FD_HD double fd_from_bits64(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The bits an element is hashed and compared by: every NaN is the same NaN, -0 and +0 differ. */
FD_HD uint32_t fd_canonical32(float x) { return x != x ? 0x7fc00000u : fd_bits32(x); }
FD_HD uint64_t fd_canonical64(double x) { return x != x ? 0x7ff8000000000000u : fd_bits64(x); }

/* ---- sums and dot products: 64 partial sums ---- */

enum { FD_PARTIALS = 64 };

/* Neighbours pair up, six times. Overwrites `a`. A GPU does the same with adds inside a lane, then shfl_xor 1, 2, 4,
 * … */
FD_HD float fd_tree64(float a[FD_PARTIALS]) {
    for (int m = FD_PARTIALS; m > 1; m /= 2)
        for (int i = 0; i < m / 2; i++) a[i] = a[2 * i] + a[2 * i + 1];
    return a[0];
}

/* Σ w[k]·x[k]: partial j takes k ≡ j (mod 64) in rising k, acc = fma(w, x, acc) from +0; then the tree. */
FD_HD float fd_dot(const float *w, const float *x, int64_t n) {
    float a[FD_PARTIALS] = {0};
    for (int64_t k = 0; k < n; k++) a[k % FD_PARTIALS] = fmaf(w[k], x[k], a[k % FD_PARTIALS]);
    return fd_tree64(a);
}

/* Σ x[k], the same order, acc = acc + x. */
FD_HD float fd_sum(const float *x, int64_t n) {
    float a[FD_PARTIALS] = {0};
    for (int64_t k = 0; k < n; k++) a[k % FD_PARTIALS] = a[k % FD_PARTIALS] + x[k];
    return fd_tree64(a);
}

/* ---- binary32 functions ---- */

/* e^x. x = n·ln2 + r with ln2 in two parts (n·hi is exact: hi has 15 trailing zero bits), a degree-6 polynomial in r
 * (minimax on |r| ≤ ln2/2, the coefficients of Cephes' expf, Moshier), and 2^n in two factors so that subnormal results
 * are rounded once. Overflows to +inf above 88.72284, is +0 below -103.9721. tests/numerics states the error. */
FD_HD float fd_exp32(float x) {
    if (!(x > -103.97208f)) return x != x ? x : 0.0f;
    if (x > 88.72284f) return (float)INFINITY;
    float n = rintf(x * 1.44269504088896341f);
    float r = fmaf(n, -0.693145751953125f, x);
    r = fmaf(n, -1.42860682030941723212e-6f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r) + 1.0f;
    int32_t exponent = (int32_t)n;
    int32_t half = exponent / 2;
    float scale_low = fd_from_bits32((uint32_t)(half + 127) << 23);
    float scale_high = fd_from_bits32((uint32_t)(exponent - half + 127) << 23);
    return p * scale_low * scale_high;
}

/* x·σ(x), with one division: x / (1 + e^-x). */
FD_HD float fd_silu32(float x) { return x / (1.0f + fd_exp32(-x)); }

/* x·σ(a·x): silu with a slope. */
FD_HD float fd_swish32(float x, float a) { return x / (1.0f + fd_exp32(-(a * x))); }

/* GELU in its tanh form, ½x(1 + tanh u) with u = √(2/π)(x + 0.044715 x³), as x·σ(2u): no cancellation where x < 0.
 * 2u = x·(c₁ + c₃x²), c₁ = 2√(2/π), c₃ = 0.044715 c₁. */
FD_HD float fd_gelu32(float x) {
    float twice_u = x * fmaf(0.0713548162726f, x * x, 1.59576912161f);
    return x / (1.0f + fd_exp32(-twice_u));
}

/* tanh x: below 0.625 the odd polynomial of Cephes' tanhf (Moshier), above it 1 - 2 / (e^2|x| + 1) with x's sign. */
FD_HD float fd_tanh32(float x) {
    float size = fabsf(x);
    if (!(size < 0.625f)) {
        float y = 1.0f - 2.0f / (fd_exp32(size + size) + 1.0f);
        return x < 0.0f ? -y : y;
    }
    float z = x * x;
    float p = -5.70498872745e-3f;
    p = fmaf(p, z, 2.06390887954e-2f);
    p = fmaf(p, z, -5.37397155531e-2f);
    p = fmaf(p, z, 1.33314422036e-1f);
    p = fmaf(p, z, -3.33332819422e-1f);
    return fmaf(p * z, x, x);
}

/* cap·tanh(x / cap). */
FD_HD float fd_softcap32(float x, float cap) { return cap * fd_tanh32(x / cap); }

/* A clamp that keeps NaN: x beyond the limit becomes the limit. */
FD_HD float fd_at_most32(float x, float limit) { return x > limit ? limit : x; }
FD_HD float fd_at_least32(float x, float limit) { return x < limit ? limit : x; }

/* σ(x). */
FD_HD float fd_sigmoid32(float x) { return 1.0f / (1.0f + fd_exp32(-x)); }

/* ---- binary64 functions: rope tables and per-step metrics; the same bits on every host ---- */

/* e^x for |x| < 700: r = x - n·ln2 (two parts), Taylor to r^13 (remainder below 5e-18 on |r| ≤ ln2/2), times 2^n. */
FD_HD double fd_exp64(double x) {
    double n = rint(x * 1.4426950408889634074);
    double r = fma(n, -6.93147180369123816490e-01, x);
    r = fma(n, -1.90821492927058770002e-10, r);
    double p = 1.0 / 6227020800.0;
    p = fma(p, r, 1.0 / 479001600.0);
    p = fma(p, r, 1.0 / 39916800.0);
    p = fma(p, r, 1.0 / 3628800.0);
    p = fma(p, r, 1.0 / 362880.0);
    p = fma(p, r, 1.0 / 40320.0);
    p = fma(p, r, 1.0 / 5040.0);
    p = fma(p, r, 1.0 / 720.0);
    p = fma(p, r, 1.0 / 120.0);
    p = fma(p, r, 1.0 / 24.0);
    p = fma(p, r, 1.0 / 6.0);
    p = fma(p, r, 0.5);
    p = fma(p, r * r, r) + 1.0;
    return p * fd_from_bits64((uint64_t)((int64_t)n + 1023) << 52);
}

/* ln x for finite normal x > 0: x = m·2^e with m in [√½, √2), s = (m-1)/(m+1), ln m = 2·atanh(s) by its series to s^25
 * (|s| ≤ 0.1716, remainder below 1e-20), plus e·ln2 in two parts. */
FD_HD double fd_log64(double x) {
    uint64_t bits = fd_bits64(x);
    int64_t e = (int64_t)(bits >> 52) - 1023;
    double m = fd_from_bits64((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
    if (m > 1.41421356237309504880) {
        m = m * 0.5;
        e = e + 1;
    }
    double s = (m - 1.0) / (m + 1.0), t = s * s;
    double p = 1.0 / 25.0;
    for (int k = 23; k >= 3; k -= 2) p = fma(p, t, 1.0 / (double)k);
    double series = 2.0 * s;
    double log_m = fma(series * t, p, series);
    return fma((double)e, 6.93147180369123816490e-01, fma((double)e, 1.90821492927058770002e-10, log_m));
}

/* base^y for base > 0: e^(y·ln base). */
FD_HD double fd_pow64(double base, double y) { return fd_exp64(y * fd_log64(base)); }

/* sin and cos of x, |x| < 2^30: r = x - k·π/2 with π/2 in three parts of 53 bits (each product exact inside its fma),
 * Taylor to r^19 and r^20 on |r| ≤ π/4 (remainder below 1e-21). */
FD_HD void fd_sincos64(double x, double *sine, double *cosine) {
    double k = rint(x * 0.63661977236758134308);
    double r = fma(k, -1.57079632679489655800e+00, x);
    r = fma(k, -6.12323399573676603587e-17, r);
    r = fma(k, 1.49738490485916983286e-33, r);
    double t = r * r;
    double s = -1.0 / 121645100408832000.0;
    s = fma(s, t, 1.0 / 355687428096000.0);
    s = fma(s, t, -1.0 / 1307674368000.0);
    s = fma(s, t, 1.0 / 6227020800.0);
    s = fma(s, t, -1.0 / 39916800.0);
    s = fma(s, t, 1.0 / 362880.0);
    s = fma(s, t, -1.0 / 5040.0);
    s = fma(s, t, 1.0 / 120.0);
    s = fma(s, t, -1.0 / 6.0);
    s = fma(s * t, r, r);
    double c = 1.0 / 2432902008176640000.0;
    c = fma(c, t, -1.0 / 6402373705728000.0);
    c = fma(c, t, 1.0 / 20922789888000.0);
    c = fma(c, t, -1.0 / 87178291200.0);
    c = fma(c, t, 1.0 / 479001600.0);
    c = fma(c, t, -1.0 / 3628800.0);
    c = fma(c, t, 1.0 / 40320.0);
    c = fma(c, t, -1.0 / 720.0);
    c = fma(c, t, 1.0 / 24.0);
    c = fma(c, t, -0.5);
    c = fma(c, t, 1.0);
    int64_t quadrant = (int64_t)k & 3;
    *sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
    *cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
}

/* ---- what a position adds to attention ---- */

/* ALiBi's slope of a head (Press et al., 2021, section 3): powers of 2^(-max_bias / n), n the largest power of two up
 * to n_head; heads past n take the odd powers of its square root. */
FD_HD double fd_alibi_slope(float max_bias, int32_t n_head, int32_t head) {
    int32_t n = 1;
    while (2 * n <= n_head) n = 2 * n;
    double step = (double)max_bias / (double)n;
    if (head < n) return fd_pow64(2.0, -step * (double)(head + 1));
    return fd_pow64(2.0, -0.5 * step * (double)(2 * (head - n) + 1));
}

/* The attention temperature of a position (Llama 4, Ministral 3): 1 up to `length`, then growing with its logarithm. */
FD_HD double fd_attn_temperature(int64_t position, int32_t length, float scale) {
    return 1.0 + (double)scale * fd_log64((double)(position / length) + 1.0);
}

#endif

/* How one source is both the contract and the binary64 reference. Each op file is compiled with `real` = float, in
 * contract order, and with FD_REF_F64, where `real` is double: the same formula without the rounding, libm's exp
 * allowed. Both are compiled for several instruction sets (FD_ISA: baseline, v3, v4), which cannot change a bit: no
 * contraction, and every fused multiply-add is written. */
#ifndef FD_REFERENCE_CPU_REAL_H
#define FD_REFERENCE_CPU_REAL_H

#include "numerics/contract.h"
#include "numerics/softplus.h"
#include "reference_cpu/ops.h"

#define FD_PASTE4_(a, b, c, d) a##_##b##_##c##_##d
#define FD_PASTE4(a, b, c, d)  FD_PASTE4_(a, b, c, d)

#ifdef FD_REF_F64

typedef double real;
#define REF(name) FD_PASTE4(fd_ref, name, f64, FD_ISA)

/* a·b + c with two roundings: at 53 bits the fused one buys nothing, and this needs no FMA hardware to be fast. */
static inline real real_fma(real a, real b, real c) {
    return a * b + c;
}
static inline real real_sqrt(real x) {
    return sqrt(x);
}
static inline real real_max(real a, real b) {
    return fmax(a, b);
}
static inline real real_exp(real x) {
    return exp(x);
}
static inline real real_silu(real x) {
    return x / (1 + exp(-x));
}
static inline real real_swish(real x, real a) {
    return x / (1 + exp(-(a * x)));
}
/* c₁ = 2√(2/π), c₃ = 0.044715 c₁: numerics/contract.h */
static inline real real_gelu(real x) {
    return x / (1 + exp(-x * (1.5957691216057307 + 0.071354816272600263 * x * x)));
}
static inline real real_sigmoid(real x) {
    return 1 / (1 + exp(-x));
}
static inline real real_softcap(real x, real cap) {
    return cap * tanh(x / cap);
}
static inline real real_softplus(real x) {
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

#else

typedef float real;
#define REF(name) FD_PASTE4(fd_ref, name, f32, FD_ISA)

static inline real real_fma(real a, real b, real c) {
    return fmaf(a, b, c);
}
static inline real real_sqrt(real x) {
    return sqrtf(x);
}
static inline real real_max(real a, real b) {
    return fmaxf(a, b);
}
static inline real real_exp(real x) {
    return fd_exp32(x);
}
static inline real real_silu(real x) {
    return fd_silu32(x);
}
static inline real real_swish(real x, real a) {
    return fd_swish32(x, a);
}
static inline real real_gelu(real x) {
    return fd_gelu32(x);
}
static inline real real_sigmoid(real x) {
    return fd_sigmoid32(x);
}
static inline real real_softcap(real x, real cap) {
    return fd_softcap32(x, cap);
}
static inline real real_softplus(real x) {
    return fd_softplus32(x);
}

#endif

/* The contract's 64 partial sums (numerics/contract.h), also in double: its order is as good as any there, and a
 * compiler can vectorise it. A dot may come in pieces, each a multiple of 64 long but the last. */
typedef struct real_sum {
    real partial[FD_PARTIALS];
} real_sum;

static inline void real_add_products(real_sum *s, const float *w, const real *x, int64_t n) {
    for (int64_t k = 0; k < n; k += FD_PARTIALS) {
        int64_t m = n - k < FD_PARTIALS ? n - k : FD_PARTIALS;
        for (int64_t j = 0; j < m; j++) s->partial[j] = real_fma((real)w[k + j], x[k + j], s->partial[j]);
    }
}

static inline real real_total(real_sum *s) {
    real *a = s->partial;
    for (int m = FD_PARTIALS; m > 1; m /= 2)
        for (int i = 0; i < m / 2; i++) a[i] = a[2 * i] + a[2 * i + 1];
    return a[0];
}

static inline real real_dot(const real *x, const real *y, int64_t n) {
    real_sum s = {0};
    for (int64_t k = 0; k < n; k += FD_PARTIALS) {
        int64_t m = n - k < FD_PARTIALS ? n - k : FD_PARTIALS;
        for (int64_t j = 0; j < m; j++) s.partial[j] = real_fma(x[k + j], y[k + j], s.partial[j]);
    }
    return real_total(&s);
}

static inline real real_total_of(const real *x, int64_t n) {
    real_sum s = {0};
    for (int64_t k = 0; k < n; k++) s.partial[k % FD_PARTIALS] = s.partial[k % FD_PARTIALS] + x[k];
    return real_total(&s);
}

#endif

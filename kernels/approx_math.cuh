/* Functions of the fast kernels: a few instructions and an error of a few units in the last place, where the contract's
 * (numerics/contract.h) are the same bits everywhere. Results below 2^-126 are 0. */
#ifndef FD_KERNELS_ATTENTION_FAST_MATH_CUH
#define FD_KERNELS_ATTENTION_FAST_MATH_CUH

#include <cuda_runtime.h>

/* 2^x; 0 for -inf, NaN for NaN. */
__device__ __forceinline__ float fd_approx_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#define FD_LOG2_E 1.44269504f

/* e^(x − base), relative error of a few |x − base|·2^-24: 1 where x is the base, however large. */
__device__ __forceinline__ float fd_approx_exp(float x, float base) {
    return fd_approx_exp2((x - base) * FD_LOG2_E);
}

/* What Σ e^(s − most)·v of all positions is multiplied with, `sum` being Σ e^(s − most): the head's sink, if it has
 * one, takes its share. */
__device__ __forceinline__ float fd_approx_mix_factor(const float *sink, float most, float sum) {
    if (!sink) return 1.0f / sum;
    const float top = fmaxf(most, *sink), factor = fd_approx_exp(most, top);
    return factor / fmaf(sum, factor, fd_approx_exp(*sink, top));
}

/* cap·tanh(x / cap), absolute error of a few cap·2^-24. */
__device__ __forceinline__ float fd_approx_softcap(float x, float cap) {
    const float twice = fd_approx_exp2(x * __fdividef(2.0f * FD_LOG2_E, cap)); /* inf and 0 give ±cap */
    return cap - 2.0f * cap * __fdividef(1.0f, 1.0f + twice);
}

/* x / (1 + e^(−slope·x)); an x of −inf gives NaN, as x·0 does. */
__device__ __forceinline__ float fd_approx_swish(float x, float slope) {
    return x * __fdividef(1.0f, 1.0f + fd_approx_exp2(x * (-FD_LOG2_E * slope)));
}

#endif

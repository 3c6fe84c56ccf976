/* The contract's binary32 functions against binary64 libm, over every binary32 input. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clones.h"
#include "numerics/contract.h"

/* Stated bounds, in units of the result's last place (subnormal results: of 2^-149). */
#define EXP32_MAX_ULP  1.02
#define SILU32_MAX_ULP 2.5
/* Below x = -88.72 e^-x overflows and silu returns -0 where the true value is still -2.7e-37: a stated absolute
 * error. */
#define SILU32_UNDERFLOW 2.7e-37
/* A relative error of the argument 2u is one of |2u| as many units of e^-2u: most where x is -10. */
#define GELU32_MAX_ULP       210.0
#define GELU32_ABOVE_MAX_ULP 2.6 /* above -1, where |2u| is small */
/* Below x = -10.05 e^-2u overflows and gelu returns -0. */
#define GELU32_UNDERFLOW 3e-38
#define TANH32_MAX_ULP   1.4

#if defined(__SANITIZE_ADDRESS__)
#define STRIDE 4099 /* every 4099th input: sanitizers are slow, and the release build looks at all */
#else
#define STRIDE 1
#endif

typedef struct worst {
    double ulp;
    uint32_t bits;
} worst;

/* Spacing of binary32 at |reference|, by its exponent field. */
static inline double ulp_of(double reference) {
    int64_t exponent = (int64_t)(fd_bits64(reference) >> 52 & 0x7ff) - 1023;
    return fd_from_bits64((uint64_t)((exponent < -126 ? -126 : exponent) - 23 + 1023) << 52);
}

/* Error of y in ulp; a NaN, an infinity or a finite value where the reference has none counts as infinitely wrong. Choices of
 * values alone, so that a loop of them is vectorised. */
static inline double error_ulp(float y, double reference) {
    float rounded = (float)reference;
    double error = fabs((double)y - reference) / ulp_of(reference);
    double finite = error >= 0.0 ? error : INFINITY, limit = y == rounded ? 0.0 : INFINITY;
    double known = isinf(rounded) || isinf(y) ? limit : finite, unknown = isnan(y) ? 0.0 : INFINITY;
    return isnan(reference) ? unknown : known;
}

enum { CHUNK = 1 << 14 };

typedef void (*function_f32)(const float *x, float *y, int n);

FD_FOR_EACH_CPU static void exp_chunk(const float *x, float *y, int n) {
    for (int i = 0; i < n; i++) y[i] = fd_exp32(x[i]);
}

FD_FOR_EACH_CPU static void silu_chunk(const float *x, float *y, int n) {
    for (int i = 0; i < n; i++) y[i] = fd_silu32(x[i]);
}

FD_FOR_EACH_CPU static void gelu_chunk(const float *x, float *y, int n) {
    for (int i = 0; i < n; i++) y[i] = fd_gelu32(x[i]);
}

FD_FOR_EACH_CPU static void gelu_above_chunk(const float *x, float *y, int n) {
    for (int i = 0; i < n; i++) y[i] = x[i] > -1.0f ? fd_gelu32(x[i]) : 0.0f;
}

FD_FOR_EACH_CPU static void tanh_chunk(const float *x, float *y, int n) {
    for (int i = 0; i < n; i++) y[i] = fd_tanh32(x[i]);
}

/* The mutant: an exponential whose last coefficient is a little off. */
FD_FOR_EACH_CPU static void mutant_chunk(const float *x, float *y, int n) {
    for (int i = 0; i < n; i++) y[i] = fd_exp32(x[i]) * 1.0000002f;
}

/* e^x as libm rounds it, in binary64; where the answer needs no libm, none is called: most of the 2^32 inputs are tiny or
 * huge. Below -750 it is 0, above 710 infinite; 1 + x is within x²/2 < 2^-55. */
static double exp_reference(double x) {
    if (fabs(x) < 0x1p-27) return 1.0 + x;
    return x > 710.0 ? INFINITY : x < -750.0 ? 0.0 : exp(x);
}

static double silu_reference(double x) {
    return x == -INFINITY ? NAN : x / (1.0 + exp_reference(-x));
} /* -inf/inf */

/* The tanh form, in the form that does not cancel. */
static double gelu_reference(double x) {
    double twice_u = 1.5957691216057307118 * (x + 0.044715 * x * x * x);
    return x == -INFINITY ? NAN : x / (1.0 + exp_reference(-twice_u));
}
static double gelu_above_reference(double x) {
    return x > -1.0 ? gelu_reference(x) : 0.0;
}
static double tanh_reference(double x) {
    return fabs(x) < 0x1p-14 ? x - x * x * x / 3.0 : tanh(x);
}

/* Where an absolute error is allowed instead: below `x`, up to `size`. */
typedef struct slack {
    double x, size;
} slack;

/* Whether all are one value: where the function only rises, the first and the last input then have the largest errors. */
FD_FOR_EACH_CPU static bool is_one_value(const float *y, int n) {
    int n_other = 0;
    for (int i = 0; i < n; i++) n_other += !(y[i] == y[0]);
    return n_other == 0;
}

static inline double allowed_error(float x, float y, double reference, slack allowed) {
    bool small = (double)x < allowed.x && fabs((double)y - reference) <= allowed.size;
    double error = error_ulp(y, reference);
    return small ? 0.0 : error;
}

FD_FOR_EACH_CPU static double largest_error(const float *x, const float *y, const double *reference, int n,
                                            slack allowed) {
    double most = 0.0;
#pragma omp simd reduction(max : most)
    for (int i = 0; i < n; i++) {
        double e = allowed_error(x[i], y[i], reference[i], allowed);
        most = e > most ? e : most;
    }
    return most;
}

static worst scan(function_f32 f, double (*reference)(double), bool rises, uint64_t stride, slack allowed) {
    worst all = {0.0, 0};
#pragma omp parallel
    {
        worst mine = {0.0, 0};
        float *x = malloc(sizeof *x * CHUNK), *y = malloc(sizeof *y * CHUNK);
        double *r = malloc(sizeof *r * CHUNK);
#pragma omp for schedule(dynamic, 16)
        for (uint64_t start = 0; start < (1ull << 32); start += CHUNK * stride) {
            const uint64_t left = ((1ull << 32) - start + stride - 1) / stride;
            int n = left < CHUNK ? (int)left : CHUNK;
            for (int i = 0; i < n; i++) x[i] = fd_from_bits32((uint32_t)start + (uint32_t)i * (uint32_t)stride);
            f(x, y, n);
            if (rises && n > 2 && is_one_value(y, n)) {
                x[1] = x[n - 1];
                n = 2;
            }
            for (int i = 0; i < n; i++) r[i] = reference((double)x[i]);
            double most = largest_error(x, y, r, n, allowed);
            if (!(most <= mine.ulp))
                for (int i = 0; i < n; i++)
                    if (allowed_error(x[i], y[i], r[i], allowed) == most) mine = (worst){most, fd_bits32(x[i])};
        }
#pragma omp critical
        if (!(mine.ulp <= all.ulp)) all = mine;
        free(x);
        free(y);
        free(r);
    }
    return all;
}

Test(contract_f32, exp_is_within_its_bound_for_every_input) {
    worst w = scan(exp_chunk, exp_reference, true, STRIDE, (slack){-INFINITY, 0.0});
    printf("exp32: worst error %.6f ulp at x = %a\n", w.ulp, fd_from_bits32(w.bits));
    cr_assert(w.ulp <= EXP32_MAX_ULP, "%.6f ulp at %a", w.ulp, fd_from_bits32(w.bits));
}

Test(contract_f32, silu_is_within_its_bound_for_a_spread_of_inputs) {
    worst w = scan(silu_chunk, silu_reference, false, 17 * STRIDE, (slack){-88.72, SILU32_UNDERFLOW});
    printf("silu32: worst error %.6f ulp at x = %a\n", w.ulp, fd_from_bits32(w.bits));
    cr_assert(w.ulp <= SILU32_MAX_ULP, "%.6f ulp at %a", w.ulp, fd_from_bits32(w.bits));
}

Test(contract_f32, gelu_is_within_its_bound_for_a_spread_of_inputs) {
    worst w = scan(gelu_chunk, gelu_reference, false, 17 * STRIDE, (slack){-10.05, GELU32_UNDERFLOW});
    printf("gelu32: worst error %.6f ulp at x = %a\n", w.ulp, fd_from_bits32(w.bits));
    cr_assert(w.ulp <= GELU32_MAX_ULP, "%.6f ulp at %a", w.ulp, fd_from_bits32(w.bits));
    w = scan(gelu_above_chunk, gelu_above_reference, false, 17 * STRIDE, (slack){-INFINITY, 0.0});
    printf("gelu32 above -1: worst error %.6f ulp at x = %a\n", w.ulp, fd_from_bits32(w.bits));
    cr_assert(w.ulp <= GELU32_ABOVE_MAX_ULP, "%.6f ulp at %a", w.ulp, fd_from_bits32(w.bits));
}

Test(contract_f32, tanh_is_within_its_bound_for_a_spread_of_inputs) {
    worst w = scan(tanh_chunk, tanh_reference, false, 17 * STRIDE, (slack){-INFINITY, 0.0});
    printf("tanh32: worst error %.6f ulp at x = %a\n", w.ulp, fd_from_bits32(w.bits));
    cr_assert(w.ulp <= TANH32_MAX_ULP, "%.6f ulp at %a", w.ulp, fd_from_bits32(w.bits));
}

Test(contract_f32, the_scan_notices_an_error_of_three_ulp) {
    worst w = scan(mutant_chunk, exp_reference, true, 4099, (slack){-INFINITY, 0.0});
    cr_assert(w.ulp > EXP32_MAX_ULP);
}

Test(contract_f32, exp_of_special_values) {
    static const struct {
        float x, y;
    } cases[] = {
        {0.0f, 1.0f},      {-0.0f, 1.0f},   {INFINITY, INFINITY}, {-INFINITY, 0.0f},
        {88.8f, INFINITY}, {-104.0f, 0.0f}, {-103.9f, 0x1p-149f}, {1e-45f, 1.0f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_assert(fd_bits32(fd_exp32(cases[i].x)) == fd_bits32(cases[i].y), "exp(%g) = %g, expected %g",
                  (double)cases[i].x, (double)fd_exp32(cases[i].x), (double)cases[i].y);
    cr_assert(isnan(fd_exp32(NAN)));
    cr_assert(isnan(fd_silu32(NAN)) && isnan(fd_gelu32(NAN)) && isnan(fd_tanh32(NAN)));
    cr_assert(fd_tanh32(INFINITY) == 1.0f && fd_tanh32(-INFINITY) == -1.0f && fd_tanh32(0.0f) == 0.0f);
    cr_assert(fd_gelu32(INFINITY) == INFINITY && fd_gelu32(0.0f) == 0.0f && fd_gelu32(-200.0f) == 0.0f);
    cr_assert(fd_softcap32(1e30f, 50.0f) == 50.0f && fd_softcap32(-1e30f, 50.0f) == -50.0f);
}

Test(contract_f32, canonical_bits_make_every_nan_one_and_keep_signed_zero) {
    cr_assert(fd_canonical32(fd_from_bits32(0xffc12345u)) == 0x7fc00000u);
    cr_assert(fd_canonical32(fd_from_bits32(0x7f800001u)) == 0x7fc00000u);
    cr_assert(fd_canonical32(-0.0f) != fd_canonical32(0.0f));
    cr_assert(fd_canonical64(NAN) == 0x7ff8000000000000u);
}

/* The rounding helpers, against the formats' converters (f16, bf16) and against binary64 arithmetic (tf32). */
#include <criterion/criterion.h>
#include <math.h>

#include "emulate/rounding.h"
#include "model/gguf/quant.h"

/* Patterns around every boundary that can matter: all exponents, both signs, mantissas next to every cut. */
static int64_t sweep(float (*round)(float), float (*truth)(float)) {
    static const uint32_t mantissas[] = {0x000000, 0x000001, 0x000fff, 0x001000, 0x001001, 0x002000, 0x003000,
                                         0x007fff, 0x008000, 0x008001, 0x018000, 0x555555, 0x7fe000, 0x7fefff,
                                         0x7ff000, 0x7ff001, 0x7f7fff, 0x7f8000, 0x7fffff};
    int64_t wrong = 0;
    for (uint32_t high = 0; high < 512; high++)
        for (size_t i = 0; i < sizeof mantissas / sizeof *mantissas; i++) {
            float x = fd_from_bits32(high << 23 | mantissas[i]);
            wrong += fd_canonical32(round(x)) != fd_canonical32(truth(x));
        }
    uint64_t seed = 5; /* Knuth's MMIX */
    for (int i = 0; i < 2000000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        float x = fd_from_bits32((uint32_t)(seed >> 32));
        wrong += fd_canonical32(round(x)) != fd_canonical32(truth(x));
    }
    return wrong;
}

static float through_f16(float x) {
    return fd_f16_to_f32(fd_f32_to_f16(x));
}
static float through_bf16(float x) {
    return fd_bf16_to_f32(fd_f32_to_bf16(x));
}

/* 11 significant bits by scaling to an integer and nearbyint; binary32's subnormals are rounded at their fixed bit. */
static float through_tf32(float x) {
    if (x == 0 || !isfinite(x)) return x;
    int exponent = ilogb((double)x);
    if (exponent < -126) exponent = -126;
    return (float)ldexp(nearbyint(ldexp((double)x, 10 - exponent)), exponent - 10);
}

static float f16(float x) {
    return fd_round_f16(x);
}
static float bf16(float x) {
    return fd_round_bf16(x);
}
static float tf32(float x) {
    return fd_round_tf32(x);
}
static float cut_to_tf32(float x) {
    return x != x ? x : fd_from_bits32(fd_bits32(x) & ~0x1fffu);
}
static float ties_away_bf16(float x) {
    return x != x ? x : fd_from_bits32((fd_bits32(x) + 0x8000u) & ~0xffffu);
}
static float f16_without_subnormals(float x) {
    return fabsf(x) < 0x1p-14f ? copysignf(0, x) : fd_round_f16(x);
}

Test(emulate_rounding, f16_is_the_formats_own) {
    cr_expect_eq(sweep(f16, through_f16), 0);
}
Test(emulate_rounding, bf16_is_the_formats_own) {
    cr_expect_eq(sweep(bf16, through_bf16), 0);
}
Test(emulate_rounding, tf32_is_eleven_significant_bits) {
    cr_expect_eq(sweep(tf32, through_tf32), 0);
}

Test(emulate_rounding, the_sweep_notices_wrong_roundings) {
    cr_expect_gt(sweep(cut_to_tf32, through_tf32), 0);
    cr_expect_gt(sweep(ties_away_bf16, through_bf16), 0);
    cr_expect_gt(sweep(f16_without_subnormals, through_f16), 0);
}

Test(emulate_rounding, rows_are_rounded_like_elements) {
    static const fd_emulate_type types[] = {FD_EMULATE_F32, FD_EMULATE_TF32, FD_EMULATE_F16, FD_EMULATE_BF16};
    float x[] = {0.1f, -3.14159f, 70000.0f, 1e-7f, -0.0f, NAN, INFINITY}, y[7];
    for (size_t t = 0; t < 4; t++) {
        fd_round_row(types[t], x, y, 7);
        for (int i = 0; i < 7; i++)
            cr_expect_eq(fd_canonical32(y[i]), fd_canonical32(fd_round_to(types[t], x[i])), "type %zu, %g", t, x[i]);
    }
    cr_expect_eq(fd_round_to(FD_EMULATE_F32, 0.1f), 0.1f);
    cr_expect(isinf(fd_round_to(FD_EMULATE_F16, 70000.0f)));
}

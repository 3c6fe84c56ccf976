/* The number formats: every 16-bit float, and blocks against the values the `gguf` Python package gives them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_bytes.h"
#include "model/gguf/quant.h"

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool same(float a, float b) {
    return isnan(a) ? isnan(b) : bits_of(a) == bits_of(b);
}

/* ---- 16-bit floats ---- */

/* The definition: sign · m · 2^e. */
static float f16_by_definition(uint32_t half) {
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    float value = exponent == 31  ? (mantissa ? NAN : INFINITY)
                  : exponent == 0 ? ldexpf((float)mantissa, -24)
                                  : ldexpf((float)(mantissa + 1024), exponent - 25);
    return half & 0x8000 ? -value : value;
}

Test(quant, f16_to_f32_is_exact_for_all_65536) {
    for (uint32_t half = 0; half < 65536; half++) {
        cr_assert(same(fd_f16_to_f32((uint16_t)half), f16_by_definition(half)), "%04x", half);
        cr_assert(same(fd_bf16_to_f32((uint16_t)half), float_of(half << 16)), "%04x", half);
    }
}

Test(quant, f16_and_bf16_survive_a_round_trip) {
    for (uint32_t half = 0; half < 65536; half++) {
        const bool f16_nan = (half & 0x7fff) > 0x7c00, bf16_nan = (half & 0x7fff) > 0x7f80;
        uint16_t f16 = fd_f32_to_f16(fd_f16_to_f32((uint16_t)half)),
                 bf16 = fd_f32_to_bf16(fd_bf16_to_f32((uint16_t)half));
        cr_assert(f16_nan ? (f16 & 0x7fff) > 0x7e00 - 1 : f16 == half, "f16 %04x became %04x", half, f16);
        cr_assert(bf16_nan ? (bf16 & 0x7fff) > 0x7fc0 - 1 : bf16 == half, "bf16 %04x became %04x", half, bf16);
    }
}

/* Between each two neighbours a < b the midpoint goes to the even one, and a hair to either side to the nearer. */
Test(quant, f32_to_f16_rounds_to_nearest_even) {
    for (uint32_t a = 0; a < 0x7c00; a++) {
        const float low = fd_f16_to_f32((uint16_t)a);
        const float high =
            a + 1 == 0x7c00 ? 65536.0f : fd_f16_to_f32((uint16_t)(a + 1)); /* where the next one would be */
        const float middle = (low + high) / 2;                             /* exact */
        const uint32_t even = a & 1 ? a + 1 : a;
        cr_assert_eq(fd_f32_to_f16(middle), even, "midpoint after %04x", a);
        cr_assert_eq(fd_f32_to_f16(nextafterf(middle, 0)), a, "below the midpoint after %04x", a);
        cr_assert_eq(fd_f32_to_f16(nextafterf(middle, INFINITY)), a + 1, "above the midpoint after %04x", a);
        cr_assert_eq(fd_f32_to_f16(-middle), 0x8000 | even, "negative midpoint after %04x", a);
    }
}

Test(quant, f32_to_bf16_rounds_to_nearest_even) {
    for (uint32_t a = 0; a < 0x7f80; a++) {
        const uint32_t middle = a << 16 | 0x8000, even = a & 1 ? a + 1 : a;
        cr_assert_eq(fd_f32_to_bf16(float_of(middle)), even, "midpoint after %04x", a);
        cr_assert_eq(fd_f32_to_bf16(float_of(middle - 1)), a);
        cr_assert_eq(fd_f32_to_bf16(float_of(middle + 1)), a + 1);
        cr_assert_eq(fd_f32_to_bf16(float_of(0x80000000u | middle)), 0x8000 | even);
    }
}

Test(quant, ends_of_the_range_become_what_ieee_says) {
    struct {
        float value;
        uint16_t f16, bf16;
    } cases[] = {
        {INFINITY, 0x7c00, 0x7f80},   {-INFINITY, 0xfc00, 0xff80}, {1e38f, 0x7c00, 0x7e96},
        {3.4e38f, 0x7c00, 0x7f80},    {0x1p-149f, 0x0000, 0x0000}, {-0.0f, 0x8000, 0x8000},
        {0x1p-24f, 0x0001, 0x3380},   {0x1p-25f, 0x0000, 0x3300},  {65504.0f, 0x7bff, 0x4780},
        {65519.996f, 0x7bff, 0x4780}, {65520.0f, 0x7c00, 0x4780},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_expect_eq(fd_f32_to_f16(cases[i].value), cases[i].f16, "f16 of %a", (double)cases[i].value);
        cr_expect_eq(fd_f32_to_bf16(cases[i].value), cases[i].bf16, "bf16 of %a", (double)cases[i].value);
    }
    const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff};
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        cr_expect(isnan(fd_f16_to_f32(fd_f32_to_f16(float_of(nans[i])))), "%08x", nans[i]);
        cr_expect(isnan(fd_bf16_to_f32(fd_f32_to_bf16(float_of(nans[i])))), "%08x", nans[i]);
    }
}

#ifdef __FLT16_MANT_DIG__
/* The compiler's own conversion, over all exponents. */
Test(quant, f32_to_f16_agrees_with_the_compiler) {
    uint32_t bits = 1;
    for (int i = 0; i < 1000000; i++) {
        bits = bits * 1664525u + 1013904223u;
        uint32_t pattern = i % 2 ? bits : (bits & 0x80ffffffu) | (uint32_t)(100 + i % 50) << 23;
        float value = float_of(pattern);
        _Float16 compiled = (_Float16)value;
        uint16_t expected;
        memcpy(&expected, &compiled, sizeof expected);
        if (isnan(value)) continue;
        cr_assert_eq(fd_f32_to_f16(value), expected, "%08x", pattern);
    }
}
#endif

/* ---- blocks ---- */

typedef struct record { /* of quant_vectors.bin; see make_quant_vectors.py */
    uint32_t kind, dtype, n, bytes;
} record;

enum { DECODE = 0, ENCODE = 1 };

static const uint8_t *vectors(void) {
    const char *other = getenv("FD_QUANT_VECTORS"); /* check_quant_package.py's */
    FILE *file = fopen(other ? other : FD_SOURCE_DIR "/tests/model/quant_vectors.bin", "rb");
    cr_assert_not_null(file);
    static uint8_t data[1 << 21];
    size_t size = fread(data, 1, sizeof data, file);
    cr_assert(size > sizeof(record) && size < sizeof data);
    fclose(file);
    return data;
}

/* Elements whose bits are not the expected ones, decoding from an address of every alignment. */
static size_t wrong_values(const record *r, const uint8_t *encoded, const float *expected) {
    size_t wrong = 0;
    float *values = malloc(r->n * sizeof *values);
    for (size_t shift = 0; shift < 4; shift++) {
        uint8_t *moved = guarded_copy(encoded, r->bytes + shift);
        memmove(moved + shift, encoded, r->bytes);
        fd_dequantize_row(r->dtype, moved + shift, values, r->n);
        for (uint32_t i = 0; i < r->n; i++) wrong += !same(values[i], expected[i]);
    }
    free(values);
    return wrong;
}

Test(quant, blocks_decode_to_the_gguf_packages_bits) {
    int n_decoded = 0;
    size_t n_nan = 0, n_inf = 0;
    record r;
    for (const uint8_t *at = vectors(); memcpy(&r, at, sizeof r), r.kind != UINT32_MAX;
         at += r.bytes + r.n * sizeof(float)) {
        at += sizeof r;
        if (r.kind != DECODE) continue;
        uint8_t *encoded = calloc(1, r.bytes + 3); /* room to be moved by */
        float *expected = malloc(r.n * sizeof *expected);
        memcpy(encoded, at, r.bytes);
        memcpy(expected, at + r.bytes, r.n * sizeof *expected);
        cr_expect_eq(wrong_values(&r, encoded, expected), 0u, "%s", fd_dtype_get(r.dtype)->name);
        for (uint32_t i = 0; i < r.n; i++) {
            n_nan += isnan(expected[i]) != 0;
            n_inf += isinf(expected[i]) != 0;
        }
        /* The mutant: a bit of each of the last nibbles, for a group's scale may be zero. The last blocks have ordinary
         * scales. */
        for (int i = 1; i <= 16; i++) encoded[r.bytes - i] ^= 0x11;
        cr_expect_neq(wrong_values(&r, encoded, expected), 0u, "%s: flipped bits went unseen",
                      fd_dtype_get(r.dtype)->name);
        free(encoded);
        free(expected);
        n_decoded++;
    }
    cr_expect_eq(n_decoded, 28);
    cr_expect(n_nan && n_inf, "the vectors hold extreme scales");
}

Test(quant, rows_encode_to_the_gguf_packages_bytes) {
    int n_encoded = 0;
    record r;
    for (const uint8_t *at = vectors(); memcpy(&r, at, sizeof r), r.kind != UINT32_MAX;
         at += r.bytes + r.n * sizeof(float)) {
        at += sizeof r;
        if (r.kind != ENCODE) continue;
        float *values = malloc(r.n * sizeof *values);
        uint8_t *encoded = malloc(r.bytes);
        memcpy(values, at, r.n * sizeof *values);
        fd_quantize_row(r.dtype, values, encoded, r.n);
        const uint8_t *expected = at + r.n * sizeof *values;
        for (uint32_t i = 0; i < r.bytes; i++)
            cr_assert_eq(encoded[i], expected[i], "%s: byte %u is %02x, expected %02x", fd_dtype_get(r.dtype)->name, i,
                         encoded[i], expected[i]);
        free(values);
        free(encoded);
        n_encoded++;
    }
    cr_expect_eq(n_encoded, 7);
}

Test(quant, block_sizes_are_the_tables) {
    struct {
        uint32_t dtype;
        size_t size;
        int32_t elements;
    } cases[] = {
        {FD_Q4_0, sizeof(fd_block_q4_0), 32},
        {FD_Q4_1, sizeof(fd_block_q4_1), 32},
        {FD_Q5_0, sizeof(fd_block_q5_0), 32},
        {FD_Q5_1, sizeof(fd_block_q5_1), 32},
        {FD_Q8_0, sizeof(fd_block_q8_0), 32},
        {FD_IQ4_NL, sizeof(fd_block_iq4_nl), 32},
        {FD_MXFP4, sizeof(fd_block_mxfp4), 32},
        {FD_NVFP4, sizeof(fd_block_nvfp4), 64},
        {FD_Q2_K, sizeof(fd_block_q2_K), 256},
        {FD_Q3_K, sizeof(fd_block_q3_K), 256},
        {FD_Q4_K, sizeof(fd_block_q4_K), 256},
        {FD_Q5_K, sizeof(fd_block_q5_K), 256},
        {FD_Q6_K, sizeof(fd_block_q6_K), 256},
        {FD_TQ1_0, sizeof(fd_block_tq1_0), 256},
        {FD_TQ2_0, sizeof(fd_block_tq2_0), 256},
        {FD_IQ1_S, sizeof(fd_block_iq1_s), 256},
        {FD_IQ1_M, sizeof(fd_block_iq1_m), 256},
        {FD_IQ2_XXS, sizeof(fd_block_iq2_xxs), 256},
        {FD_IQ2_XS, sizeof(fd_block_iq2_xs), 256},
        {FD_IQ2_S, sizeof(fd_block_iq2_s), 256},
        {FD_IQ3_XXS, sizeof(fd_block_iq3_xxs), 256},
        {FD_IQ3_S, sizeof(fd_block_iq3_s), 256},
        {FD_IQ4_XS, sizeof(fd_block_iq4_xs), 256},
        {FD_F32, 4, 1},
        {FD_F16, 2, 1},
        {FD_BF16, 2, 1},
        {FD_F64, 8, 1},
        {FD_I8, 1, 1},
        {FD_I16, 2, 1},
        {FD_I32, 4, 1},
        {FD_I64, 8, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const fd_dtype_info *info = fd_dtype_get(cases[i].dtype);
        cr_expect(info->block_bytes == (int32_t)cases[i].size && info->block_elements == cases[i].elements, "%s",
                  info->name);
        cr_expect(fd_can_dequantize(cases[i].dtype));
    }
    for (uint32_t id = 0; id < FD_DTYPE_LIMIT; id++) { /* powers of two: fd_dtype_row_bytes */
        const fd_dtype_info *info = fd_dtype_get(id);
        if (!info) continue;
        const int64_t block = info->block_elements, most = INT64_MAX / info->block_bytes;
        cr_expect(block > 0 && (block & (block - 1)) == 0, "%s", info->name);
        cr_expect(fd_dtype_row_bytes(id, 3 * block) == 3 * info->block_bytes, "%s", info->name);
        cr_expect(block == 1 || fd_dtype_row_bytes(id, 3 * block + 1) == -1, "%s", info->name);
        cr_expect(most > INT64_MAX / block - 1 || fd_dtype_row_bytes(id, (most + 1) * block) == -1, "%s", info->name);
        cr_expect(fd_dtype_row_bytes(id, -block) == -1, "%s", info->name);
    }
    cr_expect_not(fd_can_dequantize(FD_Q8_K) || fd_can_dequantize(5) || fd_can_dequantize(UINT32_MAX));
    cr_expect_not(fd_can_quantize(FD_Q4_K) || fd_can_quantize(FD_Q6_K) || fd_can_quantize(UINT32_MAX));
}

/* A NaN or Inf must not come back as an ordinary number, whatever it does to its block. */
Test(quant, nan_and_inf_are_not_hidden_by_encoding) {
    const uint32_t dtypes[] = {FD_F32, FD_F16, FD_BF16, FD_Q8_0, FD_Q4_0, FD_Q4_1, FD_Q5_0, FD_Q5_1, FD_IQ4_NL};
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (size_t b = 0; b < 4; b++)
            for (int at = 0; at < 32; at++) {
                float values[32], back[32];
                uint8_t encoded[128];
                for (int i = 0; i < 32; i++) values[i] = (float)(i - 7);
                values[at] = bad[b];
                fd_quantize_row(dtypes[d], values, encoded, 32);
                fd_dequantize_row(dtypes[d], encoded, back, 32);
                cr_assert_not(isfinite(back[at]), "%s: %f at %d came back as %f", fd_dtype_get(dtypes[d])->name,
                              (double)bad[b], at, (double)back[at]);
            }
}

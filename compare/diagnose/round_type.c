#include "compare/diagnose/round_type.h"

#include <math.h>

#include "base/dtype.h"
#include "compare/bounds/bounds.h"
#include "model/gguf/quant.h"

static float to_fp8(float x, int digits, int least_exponent, float largest) {
    int exponent;
    if (!isfinite(x) || !(fabsf(x) > 0)) return x;
    (void)frexpf(x, &exponent);
    if (exponent - 1 < least_exponent) exponent = least_exponent + 1;
    float step = ldexpf(1, exponent - digits), rounded = rintf(x / step) * step;
    return fabsf(rounded) > largest ? copysignf(largest, x) : rounded;
}

static float rounded(int32_t type, float x) {
    switch (type) {
    case FD_F16: return fd_f16_to_f32(fd_f32_to_f16(x));
    case FD_BF16: return fd_bf16_to_f32(fd_f32_to_bf16(x));
    case FD_ROUND_E4M3: return to_fp8(x, 4, -6, 448);
    default: return to_fp8(x, 3, -14, 57344);
    }
}

static bool makes_blocks(int32_t type) {
    return type >= 0 && fd_kv_is_quantised((uint32_t)type);
}

/* The largest of the row becomes 127 steps. 0: it is zero, or not finite. */
static float int8_step(const float *row, int64_t width) {
    float largest = 0;
    for (int64_t i = 0; i < width; i++) largest = !(fabsf(row[i]) <= largest) ? fabsf(row[i]) : largest;
    return isfinite(largest) ? largest / 127 : 0;
}

void fd_round_type_rows(int32_t type, float *rows, int64_t n_row, int64_t width) {
    for (int64_t p = 0; p < n_row && type == FD_ROUND_INT8; p++) {
        float *row = rows + p * width, step = int8_step(row, width);
        for (int64_t i = 0; i < width && step > 0; i++) row[i] = rintf(row[i] / step) * step;
    }
    if (type == FD_ROUND_INT8) return;
    if (!makes_blocks(type)) {
        for (int64_t i = 0; i < n_row * width; i++) rows[i] = rounded(type, rows[i]);
        return;
    }
    enum { BLOCK = 32, MOST_BYTES = 40 };
    unsigned char block[MOST_BYTES]; /* Q8_0's 34 bytes are the most */
    if (width % BLOCK) return;
    for (int64_t at = 0; at < n_row * width; at += BLOCK) {
        bool finite = true;
        for (int64_t i = at; i < at + BLOCK; i++) finite &= isfinite(rows[i]) != 0;
        if (!finite) continue;
        fd_quantize_row((uint32_t)type, rows + at, block, BLOCK);
        fd_dequantize_row((uint32_t)type, block, rows + at, BLOCK);
    }
}

/* Only a value near the middle between two steps may have gone to either. */
static void int8_bounds(const float *row, double *tau, int64_t width) {
    float step = int8_step(row, width);
    double of_step = 0;
    for (int64_t i = 0; i < width; i++) of_step = fmax(of_step, tau[i] / 127);
    for (int64_t i = 0; i < width && step > 0; i++) {
        double x = (double)row[i] / (double)step, t = tau[i] / (double)step + fabs(x) * of_step / (double)step;
        tau[i] = (rint(x + t) - rint(x - t)) * (double)step + 127 * of_step;
    }
}

void fd_round_type_bounds(int32_t type, const float *rows, double *tau, int64_t n_row, int64_t width, double *scratch) {
    const int64_t n = n_row * width;
    for (int64_t p = 0; p < n_row && type == FD_ROUND_INT8; p++) int8_bounds(rows + p * width, tau + p * width, width);
    if (type == FD_ROUND_INT8) return;
    if (makes_blocks(type)) {
        for (int64_t i = 0; i < n; i++) scratch[i] = (double)rows[i];
        for (int64_t i = 0; i < n; i++) scratch[n + i] = 0;
        fd_bound_kv_flips(scratch, tau, n, (uint32_t)type, scratch + n);
        for (int64_t i = 0; i < n; i++) tau[i] = scratch[n + i];
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double x = (double)rows[i];
        float low = rounded(type, (float)(x - tau[i])), high = rounded(type, (float)(x + tau[i]));
        tau[i] = (double)high - (double)low;
    }
}

const char *fd_round_type_name(int32_t type) {
    switch (type) {
    case FD_F16: return "binary16";
    case FD_BF16: return "bfloat16";
    case FD_ROUND_E4M3: return "8-bit floating point (e4m3)";
    case FD_ROUND_E5M2: return "8-bit floating point (e5m2)";
    case FD_ROUND_INT8: return "int8 with one scale a head";
    default: return fd_dtype_get((uint32_t)type)->name;
    }
}

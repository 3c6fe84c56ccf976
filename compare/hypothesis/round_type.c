#include "compare/hypothesis/round_type.h"

#include <math.h>

#include "base/dtype.h"
#include "compare/bounds/bounds.h"
#include "model/gguf/quant.h"

static float rounded(int32_t type, float x) {
    return type == FD_F16 ? fd_f16_to_f32(fd_f32_to_f16(x)) : fd_bf16_to_f32(fd_f32_to_bf16(x));
}

static bool makes_blocks(int32_t type) {
    return type == FD_ROUND_Q8_0_KEPT || fd_kv_is_quantised((uint32_t)type);
}

static uint32_t block_type(int32_t type) {
    return type == FD_ROUND_Q8_0_KEPT ? FD_Q8_0 : (uint32_t)type;
}

enum { BLOCK = 32 };

static void round_block(int32_t type, float *x) {
    enum { MOST_BYTES = 40 };
    unsigned char block[MOST_BYTES]; /* Q8_0's 34 bytes are the most */
    float largest = 0;
    if (type != FD_ROUND_Q8_0_KEPT) {
        fd_quantize_row((uint32_t)type, x, block, BLOCK);
        fd_dequantize_row((uint32_t)type, block, x, BLOCK);
        return;
    }
    for (int i = 0; i < BLOCK; i++) largest = fmaxf(largest, fabsf(x[i]));
    const float step = rounded(FD_F16, largest / 127);
    for (int i = 0; i < BLOCK && step > 0; i++) x[i] = fminf(fmaxf(rintf(x[i] / step), -128), 127) * step;
}

void fd_round_type_rows(int32_t type, float *rows, int64_t n_row, int64_t width) {
    if (!makes_blocks(type)) {
        for (int64_t i = 0; i < n_row * width; i++) rows[i] = rounded(type, rows[i]);
        return;
    }
    if (width % BLOCK) return;
    for (int64_t at = 0; at < n_row * width; at += BLOCK) {
        bool finite = true;
        for (int64_t i = at; i < at + BLOCK; i++) finite &= isfinite(rows[i]) != 0;
        if (finite) round_block(type, rows + at);
    }
}

void fd_round_type_bounds(int32_t type, const float *rows, double *tau, int64_t n_row, int64_t width, double *scratch) {
    const int64_t n = n_row * width;
    if (makes_blocks(type)) {
        for (int64_t i = 0; i < n; i++) scratch[i] = (double)rows[i];
        for (int64_t i = 0; i < n; i++) scratch[n + i] = 0;
        fd_bound_kv_flips(scratch, tau, n, block_type(type), scratch + n);
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
    case FD_ROUND_INT8: return "int8";
    case FD_ROUND_INT8_128: return "int8 whose scale is the largest value / 128";
    case FD_ROUND_INT4: return "int4";
    case FD_ROUND_UINT8: return "uint8 from the least value to the largest";
    case FD_ROUND_Q8_0_KEPT: return "Q8_0 that counts in its binary16 scale";
    default: return fd_dtype_get((uint32_t)type)->name;
    }
}

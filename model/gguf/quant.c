/* The table of formats. tests/model compares with the values of the `gguf` Python package.
 *
 * Every product and difference in the decoders is one binary32 operation, rounded as written (-ffp-contract=off): the
 * CUDA kernels follow the same steps and get the same bits. Scales are 16-bit floats (11 significant bits) times
 * integers of few bits (at most 11 + 7 + 5 in Q6_K), so every product is exact; what rounds is the addition or
 * subtraction of a minimum (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K), and a product beyond binary32's range (MXFP4). */
#include "model/gguf/quant.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>

#include "model/gguf/float16.h"
#include "model/gguf/formats.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "blocks are read in place: little-endian hosts only"
#endif

float fd_f16_to_f32(uint16_t bits) {
    return f16_to_f32(bits);
}
float fd_bf16_to_f32(uint16_t bits) {
    return bf16_to_f32(bits);
}
uint16_t fd_f32_to_f16(float value) {
    return f32_to_f16(value);
}
uint16_t fd_f32_to_bf16(float value) {
    return f32_to_bf16(value);
}

static const struct {
    void (*decode)(const uint8_t *restrict from, float *restrict to, int64_t n);
    void (*encode)(const float *restrict from, uint8_t *restrict to, int64_t n);
    void (*codes)(const uint8_t *restrict from, float *restrict scales, int8_t *restrict codes, int64_t n);
} formats[FD_DTYPE_LIMIT] = {
#define FD_READ(ENUM, name)             [FD_##ENUM] = {fd_decode_##name, NULL, NULL},
#define FD_READ_WRITE(ENUM, name)       [FD_##ENUM] = {fd_decode_##name, fd_encode_##name, NULL},
#define FD_READ_CODES(ENUM, name)       [FD_##ENUM] = {fd_decode_##name, NULL, fd_codes_##name},
#define FD_READ_WRITE_CODES(ENUM, name) [FD_##ENUM] = {fd_decode_##name, fd_encode_##name, fd_codes_##name},
#include "model/gguf/formats.def"
#undef FD_READ
#undef FD_READ_WRITE
#undef FD_READ_CODES
#undef FD_READ_WRITE_CODES
};

bool fd_can_dequantize(uint32_t dtype) {
    return dtype < FD_DTYPE_LIMIT && formats[dtype].decode;
}
bool fd_can_quantize(uint32_t dtype) {
    return dtype < FD_DTYPE_LIMIT && formats[dtype].encode;
}

bool fd_has_codes(uint32_t dtype) {
    return dtype < FD_DTYPE_LIMIT && formats[dtype].codes;
}

void fd_dequantize_row(uint32_t dtype, const void *src, float *dst, int64_t n) {
    assert(fd_can_dequantize(dtype) && fd_dtype_row_bytes(dtype, n) >= 0);
    formats[dtype].decode(src, dst, n);
}

void fd_quantize_row(uint32_t dtype, const float *src, void *dst, int64_t n) {
    assert(fd_can_quantize(dtype) && fd_dtype_row_bytes(dtype, n) >= 0);
    formats[dtype].encode(src, dst, n);
}

void fd_round_through(uint32_t dtype, float *row, int64_t n) {
    enum { PIECE = 256 }; /* a multiple of every block */
    uint8_t blocks[4 * PIECE];
    for (int64_t i = 0; i < n && fd_dtype_get(dtype)->block_elements > 1; i++)
        if (!isfinite(row[i])) return;
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t count = n - at < PIECE ? n - at : PIECE;
        fd_quantize_row(dtype, row + at, blocks, count);
        fd_dequantize_row(dtype, blocks, row + at, count);
    }
}

void fd_codes_row(uint32_t dtype, const void *src, float *scales, int8_t *codes, int64_t n) {
    assert(fd_has_codes(dtype) && fd_dtype_row_bytes(dtype, n) >= 0);
    formats[dtype].codes(src, scales, codes, n);
}

/* Dequantisation: each format's own formula, exact in binary32 where the format allows it, bit-equal to the `gguf`
 * Python package's. Quantisation (for making models) of the formats the tools need.
 *
 * The functions here are the reference; reference_cpu decodes some formats in vector registers, and a test proves equal
 * bits. */
#ifndef FD_MODEL_GGUF_QUANT_H
#define FD_MODEL_GGUF_QUANT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

/* The block formats' binary layouts, as in the file (drawn in quant.c above each decoder). */
typedef struct {
    uint16_t d;
    uint8_t qs[16];
} fd_block_q4_0; /* 32 elements: d, nibbles */
typedef struct {
    uint16_t d;
    uint8_t qh[4], qs[16];
} fd_block_q5_0; /* 32 elements: d, fifth bits, nibbles */
typedef struct {
    uint16_t d;
    int8_t qs[32];
} fd_block_q8_0; /* 32 elements: d, int8 */
typedef struct {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[128];
} fd_block_q4_K; /* 256 elements */
typedef struct {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d;
} fd_block_q6_K; /* 256 elements */

/* IEEE binary16 and bfloat16 to binary32: exact; NaN stays NaN, subnormals kept. */
float fd_f16_to_f32(uint16_t bits);
float fd_bf16_to_f32(uint16_t bits);
/* Round to nearest even; overflow to infinity; NaN to a quiet NaN. */
uint16_t fd_f32_to_f16(float value);
uint16_t fd_f32_to_bf16(float value);

/* True for types fd_dequantize_row can read. */
bool fd_can_dequantize(uint32_t dtype);

/* n elements (whole blocks) from `src` (no alignment needed) to dst [n]. `dtype` must satisfy fd_can_dequantize. */
void fd_dequantize_row(uint32_t dtype, const void *src, float *dst, int64_t n);

/* The other way, for F32, F16, BF16, Q8_0, Q4_0 (reference algorithm of ggml: d = absmax/127, round half away from
 * zero; Q4_0 d = signed extreme / -8). */
bool fd_can_quantize(uint32_t dtype);
void fd_quantize_row(uint32_t dtype, const float *src, void *dst, int64_t n);

#endif

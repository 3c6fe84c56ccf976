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
#include "model/gguf/blocks.h"

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

/* Formats whose every value is a scale times a small integer, in one binary32 product: the scales of each 16 elements
 * [n/16] and the integers [n]. `dtype` must satisfy fd_has_codes. */
bool fd_has_codes(uint32_t dtype);
void fd_codes_row(uint32_t dtype, const void *src, float *scales, int8_t *codes, int64_t n);

/* The other way, for F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL (ggml's reference algorithms: Q8_0 d = absmax/127,
 * round half away from zero; Q4_0, Q5_0 d = signed extreme / -8, -16; Q4_1, Q5_1 from the minimum to the maximum; IQ4_NL the levels
 * by the signed extreme / -127, then the d that is best for them). */
bool fd_can_quantize(uint32_t dtype);
void fd_quantize_row(uint32_t dtype, const float *src, void *dst, int64_t n);

/* n elements, a multiple of the type's block, to it and back. Values that are not finite stay, in types of blocks with all
 * others of their row: no block has them. */
void fd_round_through(uint32_t dtype, float *row, int64_t n);

#endif

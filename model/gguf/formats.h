/* One decoder a format: n elements, whole blocks, from `from` to binary32. `from` needs no alignment, so bytes are read
 * at their offsets. model/gguf/quant.h is the way to them. */
#ifndef FD_MODEL_GGUF_FORMATS_H
#define FD_MODEL_GGUF_FORMATS_H

#include <stdint.h>

#include "model/gguf/quant.h"

#define FD_READ(ENUM, name) void fd_decode_##name(const uint8_t *restrict from, float *restrict to, int64_t n);
#define FD_READ_WRITE(ENUM, name)                                                                                      \
    FD_READ(ENUM, name) void fd_encode_##name(const float *restrict from, uint8_t *restrict to, int64_t n);
#define FD_READ_CODES(ENUM, name)                                                                                      \
    FD_READ(ENUM, name)                                                                                                \
    void fd_codes_##name(const uint8_t *restrict from, float *restrict scales, int8_t *restrict codes, int64_t n);
#define FD_READ_WRITE_CODES(ENUM, name)                                                                                \
    FD_READ_CODES(ENUM, name) void fd_encode_##name(const float *restrict from, uint8_t *restrict to, int64_t n);
#include "model/gguf/formats.def"
#undef FD_READ
#undef FD_READ_WRITE
#undef FD_READ_CODES
#undef FD_READ_WRITE_CODES

#endif

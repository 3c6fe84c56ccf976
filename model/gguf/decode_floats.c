/* Elements that are no blocks: floats and integers, each rounded once to binary32 where that has fewer bits. */
#include "base/clones.h"
#include "model/gguf/float16.h"
#include "model/gguf/formats.h"

void fd_decode_f32(const uint8_t *from, float *to, int64_t n) {
    memcpy(to, from, (size_t)n * sizeof *to);
}

FD_FOR_EACH_CPU void fd_decode_f16(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = f16_to_f32(load_u16(from + 2 * i));
}

FD_FOR_EACH_CPU void fd_decode_bf16(const uint8_t *restrict from, float *restrict to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = bf16_to_f32(load_u16(from + 2 * i));
}

/* F64, I8, I16, I32, I64, little endian. */
#define DECODE_NUMBERS(name, type)                                                                                     \
    FD_FOR_EACH_CPU void fd_decode_##name(const uint8_t *restrict from, float *restrict to, int64_t n) {               \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            type value;                                                                                                \
            memcpy(&value, from + i * (int64_t)sizeof value, sizeof value);                                            \
            to[i] = (float)value;                                                                                      \
        }                                                                                                              \
    }
DECODE_NUMBERS(f64, double)
DECODE_NUMBERS(i8, int8_t)
DECODE_NUMBERS(i16, int16_t)
DECODE_NUMBERS(i32, int32_t)
DECODE_NUMBERS(i64, int64_t)

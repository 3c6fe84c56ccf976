/* Element types: one table of every ggml type's block size, so that no other file computes a tensor's bytes.
 *
 * Source: the GGUF specification and ggml's type table (block sizes in elements and bytes). Values are ggml's type ids,
 * as they stand in a GGUF file. */
#ifndef FD_BASE_DTYPE_H
#define FD_BASE_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fd_dtype {
    FD_F32 = 0,
    FD_F16 = 1,
    FD_Q4_0 = 2,
    FD_Q4_1 = 3,
    FD_Q5_0 = 6,
    FD_Q5_1 = 7,
    FD_Q8_0 = 8,
    FD_Q8_1 = 9,
    FD_Q2_K = 10,
    FD_Q3_K = 11,
    FD_Q4_K = 12,
    FD_Q5_K = 13,
    FD_Q6_K = 14,
    FD_Q8_K = 15,
    FD_IQ2_XXS = 16,
    FD_IQ2_XS = 17,
    FD_IQ3_XXS = 18,
    FD_IQ1_S = 19,
    FD_IQ4_NL = 20,
    FD_IQ3_S = 21,
    FD_IQ2_S = 22,
    FD_IQ4_XS = 23,
    FD_I8 = 24,
    FD_I16 = 25,
    FD_I32 = 26,
    FD_I64 = 27,
    FD_F64 = 28,
    FD_IQ1_M = 29,
    FD_BF16 = 30,
    FD_TQ1_0 = 34,
    FD_TQ2_0 = 35,
    FD_MXFP4 = 39,
    FD_NVFP4 = 40,
    FD_DTYPE_LIMIT = 42, /* one past the largest id the table may hold */
} fd_dtype;

typedef struct fd_dtype_info {
    const char *name;       /* "Q8_0"; NULL where ggml has no such type */
    int32_t block_elements; /* elements of one block along the row */
    int32_t block_bytes;
    bool is_quantised;
} fd_dtype_info;

/* The row of the table; NULL when `id` is not a ggml type. */
const fd_dtype_info *fd_dtype_get(uint32_t id);

/* The type named `name` ("q8_0", any case); -1 when there is none. */
int fd_dtype_parse(const char *name);

/* Bytes of a row of n elements; -1 when n is not a whole number of blocks, the type is unknown, or it overflows. */
int64_t fd_dtype_row_bytes(uint32_t id, int64_t n);

#ifdef __cplusplus
}
#endif
#endif

#include "base/dtype.h"

#include <limits.h>
#include <stddef.h>
#include <strings.h>

/* Q8_1 and Q8_K are ggml's intermediate types and stand in no file. Rows are ggml's; ids 4, 5, 31–33 and 36–38 were
 * removed from ggml and stay empty. Only the sizes are needed to check a file; model/gguf/quant.c says which of them
 * can be read. */
static const fd_dtype_info table[FD_DTYPE_LIMIT] = {
    [FD_F32] = {"F32", 1, 4, false},
    [FD_F16] = {"F16", 1, 2, false},
    [FD_Q4_0] = {"Q4_0", 32, 18, true},
    [FD_Q4_1] = {"Q4_1", 32, 20, true},
    [FD_Q5_0] = {"Q5_0", 32, 22, true},
    [FD_Q5_1] = {"Q5_1", 32, 24, true},
    [FD_Q8_0] = {"Q8_0", 32, 34, true},
    [FD_Q8_1] = {"Q8_1", 32, 36, true},
    [FD_Q2_K] = {"Q2_K", 256, 84, true},
    [FD_Q3_K] = {"Q3_K", 256, 110, true},
    [FD_Q4_K] = {"Q4_K", 256, 144, true},
    [FD_Q5_K] = {"Q5_K", 256, 176, true},
    [FD_Q6_K] = {"Q6_K", 256, 210, true},
    [FD_Q8_K] = {"Q8_K", 256, 292, true},
    [FD_IQ2_XXS] = {"IQ2_XXS", 256, 66, true},
    [FD_IQ2_XS] = {"IQ2_XS", 256, 74, true},
    [FD_IQ3_XXS] = {"IQ3_XXS", 256, 98, true},
    [FD_IQ1_S] = {"IQ1_S", 256, 50, true},
    [FD_IQ4_NL] = {"IQ4_NL", 32, 18, true},
    [FD_IQ3_S] = {"IQ3_S", 256, 110, true},
    [FD_IQ2_S] = {"IQ2_S", 256, 82, true},
    [FD_IQ4_XS] = {"IQ4_XS", 256, 136, true},
    [FD_I8] = {"I8", 1, 1, false},
    [FD_I16] = {"I16", 1, 2, false},
    [FD_I32] = {"I32", 1, 4, false},
    [FD_I64] = {"I64", 1, 8, false},
    [FD_F64] = {"F64", 1, 8, false},
    [FD_IQ1_M] = {"IQ1_M", 256, 56, true},
    [FD_BF16] = {"BF16", 1, 2, false},
    [FD_TQ1_0] = {"TQ1_0", 256, 54, true},
    [FD_TQ2_0] = {"TQ2_0", 256, 66, true},
    [FD_MXFP4] = {"MXFP4", 32, 17, true},
    [FD_NVFP4] = {"NVFP4", 64, 36, true},
    [41] = {"Q1_0", 128, 18, true},
};

const fd_dtype_info *fd_dtype_get(uint32_t id) {
    return id < FD_DTYPE_LIMIT && table[id].name ? &table[id] : NULL;
}

int fd_dtype_parse(const char *name) {
    for (int id = 0; id < FD_DTYPE_LIMIT; id++)
        if (table[id].name && strcasecmp(name, table[id].name) == 0) return id;
    return -1;
}

int64_t fd_dtype_row_bytes(uint32_t id, int64_t n) {
    const fd_dtype_info *info = fd_dtype_get(id);
    /* Asked of every row that is decoded: blocks have a power of two elements, so no division is needed. */
    if (!info || n < 0 || (n & (info->block_elements - 1)) != 0) return -1;
    int64_t bytes, blocks = n >> __builtin_ctzll((uint64_t)info->block_elements);
    return __builtin_mul_overflow(blocks, info->block_bytes, &bytes) ? -1 : bytes;
}

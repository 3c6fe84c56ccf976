#include "base/dtype.h"

#include <limits.h>
#include <stddef.h>
#include <strings.h>

/* Q8_1 and Q8_K are ggml's intermediate types and stand in no file. Rows are ggml's; ids 4, 5, 31–33 and 36–38 were
 * removed from ggml and stay empty. Only the sizes are needed to check a file; model/gguf/quant.c says which of them
 * can be read. */
static const fd_dtype_info table[FD_DTYPE_LIMIT] = {
    [FD_F32] = {"F32", 1, 4, false},   [FD_F16] = {"F16", 1, 2, false},   [FD_Q4_0] = {"Q4_0", 32, 18, true},
    [3] = {"Q4_1", 32, 20, true},      [FD_Q5_0] = {"Q5_0", 32, 22, true}, [7] = {"Q5_1", 32, 24, true},
    [FD_Q8_0] = {"Q8_0", 32, 34, true}, [9] = {"Q8_1", 32, 36, true},     [10] = {"Q2_K", 256, 84, true},
    [11] = {"Q3_K", 256, 110, true},   [FD_Q4_K] = {"Q4_K", 256, 144, true}, [13] = {"Q5_K", 256, 176, true},
    [FD_Q6_K] = {"Q6_K", 256, 210, true}, [15] = {"Q8_K", 256, 292, true}, [16] = {"IQ2_XXS", 256, 66, true},
    [17] = {"IQ2_XS", 256, 74, true},  [18] = {"IQ3_XXS", 256, 98, true}, [19] = {"IQ1_S", 256, 50, true},
    [20] = {"IQ4_NL", 32, 18, true},   [21] = {"IQ3_S", 256, 110, true},  [22] = {"IQ2_S", 256, 82, true},
    [23] = {"IQ4_XS", 256, 136, true}, [24] = {"I8", 1, 1, false},        [25] = {"I16", 1, 2, false},
    [FD_I32] = {"I32", 1, 4, false},   [FD_I64] = {"I64", 1, 8, false},   [FD_F64] = {"F64", 1, 8, false},
    [29] = {"IQ1_M", 256, 56, true},   [FD_BF16] = {"BF16", 1, 2, false}, [34] = {"TQ1_0", 256, 54, true},
    [35] = {"TQ2_0", 256, 66, true},   [39] = {"MXFP4", 32, 17, true},
    [40] = {"NVFP4", 64, 36, true},    [41] = {"Q1_0", 128, 18, true},
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
    if (!info || n < 0 || n % info->block_elements != 0) return -1;
    int64_t blocks = n / info->block_elements;
    return blocks > INT64_MAX / info->block_bytes ? -1 : blocks * info->block_bytes;
}

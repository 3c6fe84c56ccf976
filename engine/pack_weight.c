#include "engine/pack_weight.h"

#include <assert.h>
#include <string.h>

#include "kernels/formats/pack.h"
#include "model/gguf/quant.h"

void fd_pack_weight_row(uint32_t dtype, int64_t n_col, const void *from, void *to) {
    if (fd_has_codes(dtype)) {
        fd_pack_codes_row(dtype, n_col, from, to, fd_codes_row);
    } else if (fd_packed_type(dtype) == dtype) {
        fd_pack_row(dtype, n_col, from, to);
    } else {
        assert(fd_packed_type(dtype) == FD_F32);
        memset(to, 0, (size_t)fd_packed_row_bytes(dtype, n_col));
        fd_dequantize_row(dtype, from, to, n_col);
    }
}

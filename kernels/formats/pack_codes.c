#include <assert.h>
#include <string.h>

#include "base/levels.h"
#include "kernels/formats/pack.h"

/* A word of eight codes that are levels; `nibble_of` a level plus 128. */
static uint32_t level_word(const uint8_t *nibble_of, const int8_t *codes) {
    uint32_t word = 0;
    for (int i = 0; i < 8; i++) word |= (uint32_t)nibble_of[codes[i] + 128] << 4 * i;
    return word;
}

/* n elements from column `first` on. `nibble_of` NULL: codes stay bytes. A scale of the unit: `each` elements. */
static void pack_codes(int64_t first, int64_t n, int each, const uint8_t *nibble_of, const float *scales,
                       const int8_t *codes, uint8_t *to) {
    const int64_t head = 128 / each * (int64_t)sizeof *scales, unit_bytes = head + (nibble_of ? 64 : 128);
    for (int64_t i = 0; i < n; i += 8) {
        const int64_t k = first + i, group = k / 64 % 2, lane = k % 64 / 8;
        uint8_t *unit = to + k / 128 * unit_bytes;
        if (k % each == 0) memcpy(unit + k % 128 / each * (int64_t)sizeof *scales, scales + i / 16, sizeof *scales);
        const uint32_t word = nibble_of ? level_word(nibble_of, codes + i) : 0;
        if (nibble_of)
            memcpy(unit + head + lane * 8 + group * 4, &word, sizeof word);
        else
            memcpy(unit + head + lane * 16 + group * 8, codes + i, 8);
    }
}

void fd_pack_codes_row(uint32_t dtype, int64_t n_col, const void *from, void *to, fd_unpack_codes *unpack) {
    static const int8_t iq4[16] = {FD_IQ4_LEVELS}, fp4[16] = {FD_FP4_LEVELS};
    enum { AT_ONCE = 256 };
    float scales[AT_ONCE / 16];
    int8_t codes[AT_ONCE];
    uint8_t nibble_of[256] = {0};
    const uint32_t type = fd_packed_type(dtype);
    const bool bytes = type == FD_PACKED_CODES;
    const int each = type == FD_IQ4_NL || type == FD_MXFP4 ? 32 : 16;
    assert(bytes || type == FD_IQ4_NL || type == FD_MXFP4 || type == FD_NVFP4);
    for (int i = 15; i >= 0; i--) nibble_of[(type == FD_IQ4_NL ? iq4 : fp4)[i] + 128] = (uint8_t)i;
    memset(to, 0, (size_t)fd_packed_row_bytes(dtype, n_col));
    for (int64_t k = 0; k < n_col; k += AT_ONCE) {
        const int64_t n = n_col - k < AT_ONCE ? n_col - k : AT_ONCE;
        unpack(dtype, (const uint8_t *)from + fd_dtype_row_bytes(dtype, k), scales, codes, n);
        pack_codes(k, n, each, bytes ? NULL : nibble_of, scales, codes, to);
    }
}

/* Weight rows as they lie in device memory: the file's bits, rearranged on the way up so that a lane's neighbouring
 * elements are neighbouring bytes and loads are aligned. Nothing is requantised: formats whose values are a scale times
 * an integer keep both, the scale as the binary32 that the CPU multiplies by too (model/gguf/quant.h, fd_codes_row).
 *
 * Elements go in groups of 64, the contract's partials; lane l of 8 owns elements 8l … 8l + 7 of a group. A unit is
 * what the eight lanes load at once. Rows are whole units, the rest zero, and start at multiples of 16 bytes.
 *
 *   F32, F16, BF16   unit of 64: as in the file
 *   Q8_0             unit of 128: 128 bytes: lane l's 8 + 8 int8 of the unit's two groups at byte 16 l
 *   Q4_0             unit of 128: 64 bytes: lane l's words for the two groups at byte 8 l
 *   Q5_0             unit of 128: 64 bytes as Q4_0's, then 16: lane l's fifth bits at byte 2 l, a byte a group, bit i
 *                    element i's
 *   Q4_K             unit of 256: 16 bytes d, dmin, scales as in the file, then 128: lane l's four words at byte 16 l
 *   Q6_K             unit of 256: 128 bytes: lane l's four words of low nibbles at byte 16 l; 64: its two words of high
 *                    bits at byte 8 l; 16: scales, those of lanes 2p and 2p + 1 for the four groups at byte 4 p
 *   Q3_K             unit of 256: 64 bytes: lane l's two words of bit pairs at byte 8 l; 32: its third bits at byte 4 l,
 *                    a byte a group, bit i element i's; 16: scales, int8, placed as Q6_K's
 *   Q8_0, Q4_0, Q5_0, Q3_K and Q6_K have their f16 block scales d, in file order, in a plane after the row's units.
 *
 *   Q4_1             unit of 128: 16 bytes d and m of the four blocks, then 64 as Q4_0's
 *   Q5_1             unit of 128: 16 bytes d and m of the four blocks, then 80 as Q5_0's
 *   Q2_K             unit of 256: 64 bytes: lane l's two words of bit pairs at byte 8 l; 16: scales and mins as in the
 *                    file, placed as Q6_K's; d, dmin and 12 bytes of nothing
 *   Q5_K             unit of 256: 144 bytes as Q4_K's, then 32: lane l's fifth bits at byte 4 l, a byte a group, bit i
 *                    element i's
 *   IQ4_NL, IQ4_XS,  unit of 128: 16 bytes: the scales of 32 elements each; 64: lane l's words of levels for the two
 *   MXFP4            groups at byte 8 l
 *   NVFP4            the same with 32 bytes: the scales of 16 elements each
 *   IQ1 … IQ3, TQ    unit of 128: 32 bytes: the scales of 16 elements each; 128: codes, placed as Q8_0's int8
 *   F64, integers    as binary32, rounded once, as F32's
 *
 *   word of nibbles  byte i (0…3): element i low, element i + 4 high
 *   word of levels   nibble i (0…7): element i
 *   word of bit pairs (Q6_K's high ones too), for groups 2h and 2h + 1: byte i: element i, i + 4 of group 2h, i, i + 4 of
 *                    2h + 1; bits 0-1, 2-3, 4-5, 6-7 */
#ifndef FD_KERNELS_FORMATS_PACK_H
#define FD_KERNELS_FORMATS_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A weight matrix in device memory. */
typedef struct fd_device_matrix {
    const void *data;     /* device, n_row rows of row_bytes */
    uint32_t dtype;       /* fd_dtype; fd_can_pack */
    int64_t n_row;        /* outputs */
    int64_t n_col;        /* inputs */
    int64_t row_bytes;    /* fd_packed_row_bytes */
    int64_t scale_offset; /* from a row's start to its plane of block scales; 0 when it has none */
} fd_device_matrix;

bool fd_can_pack(uint32_t dtype);

/* The type as which the device reads `dtype`: itself, or another one of the same layout. */
enum { FD_PACKED_CODES = FD_DTYPE_LIMIT }; /* IQ1 … IQ3, TQ */
uint32_t fd_packed_type(uint32_t dtype);

/* Elements of a unit. */
int32_t fd_pack_unit(uint32_t dtype);

/* Bytes of a row, a multiple of 16, and where its plane of scales starts. `n_col` is whole blocks. */
int64_t fd_packed_row_bytes(uint32_t dtype, int64_t n_col);
int64_t fd_packed_scale_offset(uint32_t dtype, int64_t n_col);

/* One row from the file's layout to the device's, both in host memory; `to` gets fd_packed_row_bytes. fd_pack_row takes
 * the types whose bits stay; fd_pack_codes_row the others in blocks, which `unpack` takes apart: n elements to the scales
 * of each 16 and codes, a level's value where nibbles stand for levels. engine/pack_weight.h knows which is which. */
typedef void fd_unpack_codes(uint32_t dtype, const void *from, float *scales, int8_t *codes, int64_t n);
void fd_pack_row(uint32_t dtype, int64_t n_col, const void *from, void *to);
void fd_pack_codes_row(uint32_t dtype, int64_t n_col, const void *from, void *to, fd_unpack_codes *unpack);

#ifdef __cplusplus
}
#endif
#endif

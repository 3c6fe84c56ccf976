/* Weight rows as they lie in device memory: the file's bits, rearranged on the way up so that a lane's neighbouring
 * elements are neighbouring bytes and loads are aligned. Nothing is rounded or requantised.
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
 *   Q8_0, Q4_0, Q5_0 and Q6_K have their f16 block scales d, in file order, in a plane after the row's units.
 *
 *   word of nibbles  byte i (0…3): element i low, element i + 4 high
 *   word of Q6_K's high bits, for groups 2h and 2h + 1: byte i: element i, i + 4 of group 2h, i, i + 4 of 2h + 1;
 *                    bits 0-1, 2-3, 4-5, 6-7 */
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

/* Elements of a unit. */
int32_t fd_pack_unit(uint32_t dtype);

/* Bytes of a row, a multiple of 16, and where its plane of scales starts. `n_col` is whole blocks. */
int64_t fd_packed_row_bytes(uint32_t dtype, int64_t n_col);
int64_t fd_packed_scale_offset(uint32_t dtype, int64_t n_col);

/* One row from the file's layout to the device's, both in host memory; `to` gets fd_packed_row_bytes. */
void fd_pack_row(uint32_t dtype, int64_t n_col, const void *from, void *to);

#ifdef __cplusplus
}
#endif
#endif

/* An array as a foreign file holds it: elements of some type somewhere in memory, with a stride for every axis. What
 * the readers (npy.h, safetensors.h) hand out; nothing is copied, and elements are converted as they are fetched. */
#ifndef FD_DUMPERS_IMPORT_ARRAY_H
#define FD_DUMPERS_IMPORT_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum fd_array_type {
    FD_ARRAY_F16,
    FD_ARRAY_BF16,
    FD_ARRAY_F32,
    FD_ARRAY_F64,
    FD_ARRAY_I8,
    FD_ARRAY_I16,
    FD_ARRAY_I32,
    FD_ARRAY_I64,
    FD_ARRAY_U8,
    FD_ARRAY_U16,
    FD_ARRAY_U32,
    FD_ARRAY_U64,
    FD_ARRAY_BOOL,
    FD_ARRAY_TYPE_COUNT
} fd_array_type;

enum { FD_ARRAY_MAX_RANK = 8 };

typedef struct fd_array {
    fd_array_type type;
    bool swapped; /* bytes are in the other order than this machine's */
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK];  /* slowest first, as numbered in the file; every one ≥ 0 */
    int64_t stride[FD_ARRAY_MAX_RANK]; /* in bytes */
    const uint8_t *data;               /* borrowed */
} fd_array;

const char *fd_array_type_name(fd_array_type type); /* "f16", "bf16", "i32" */
bool fd_array_is_float(fd_array_type type);

/* Sets the strides of an array without gaps (column-major when `fortran`) and returns its bytes; -1 when a dimension
 * is negative, an axis too many, or the product does not fit int64_t. */
int64_t fd_array_pack(fd_array *array, bool fortran);

/* "[1, 13, 64]" into out; returns out. */
const char *fd_array_shape_text(int rank, const int64_t *shape, char out[128]);

/* Elements in row-major order of the array's axes, widened to double (exact for all but 64-bit integers beyond 2^53):
 * out has as many as the product of the shape. */
void fd_array_fetch(const fd_array *array, double *out);

/* The same elements, in the row-major order of the array's axes, with other dimensions; false when their number differs or
 * that is not their order in memory. */
bool fd_array_reshape(fd_array *array, int rank, const int64_t *shape);

/* The array without axis `axis`, at index `i` of it. */
fd_array fd_array_at(const fd_array *array, int axis, int64_t i);

#endif

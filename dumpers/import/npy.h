/* NumPy's .npy files, versions 1.0 to 3.0.
 *
 *   0  "\x93NUMPY"   6  version: major, minor   8  length of the header: u16 (1.0), u32 (2.0, 3.0), little-endian
 *   then the header, a Python dictionary {'descr': '<f4', 'fortran_order': False, 'shape': (13, 64), }, then elements.
 *
 * Source: NumPy's format description (numpy.lib.format). The header is read as the literal that it is, never run. */
#ifndef FD_DUMPERS_IMPORT_NPY_H
#define FD_DUMPERS_IMPORT_NPY_H

#include "dumpers/import/array.h"

/* `out` borrows from `data`. `name` is for messages. bf16 is '<V2' (as ml_dtypes writes it) or 'bfloat16'; 16-bit
 * integers stay integers. FD_ERR_INPUT for what is not npy, is cut short, has bytes too many, or holds Python objects
 * (a pickle, which would run code). */
fd_code fd_npy_parse(const char *name, const void *data, size_t size, fd_array *out, fd_error *err);

#endif

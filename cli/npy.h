/* Writes NumPy's .npy files. */
#ifndef FD_CLI_NPY_H
#define FD_CLI_NPY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { FD_NPY_MAX_RANK = 5 };

/* Little-endian float64 when `wide`, else float32, in row-major order; a header of 128 bytes. x [product of shape]. */
fd_code fd_cli_write_npy(const char *path, int rank, const int64_t *shape, const double *x, bool wide, fd_error *err);

#endif

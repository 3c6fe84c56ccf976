/* What a file from elsewhere may ask for: far beyond what models need, and little enough that no file takes a machine
 * with it. One table; `firstdiff … --limit NAME=VALUE` raises or lowers a row for one call.
 *
 * The values are the process's, set before files are read. */
#ifndef FD_BASE_LIMITS_H
#define FD_BASE_LIMITS_H

#include <stdint.h>

#include "base/status.h"

typedef enum fd_limit {
    FD_LIMIT_POSITIONS,
    FD_LIMIT_NODES,
    FD_LIMIT_NAMES,
    FD_LIMIT_WEIGHTS,
    FD_LIMIT_TENSOR_BYTES,
    FD_LIMIT_TENSORS,
    FD_LIMIT_HEADER_BYTES,
    FD_LIMIT_MEMBERS,
    FD_LIMIT_INFLATION,
    FD_LIMIT_MAP_BYTES,
    FD_LIMIT_RULES,
    FD_LIMIT_TRIES,
    FD_LIMIT_TEXT_BYTES,
    FD_LIMIT_PROMPTS,
    FD_LIMIT_JSON_MEMORY,
    FD_LIMIT_HDF5_MEMORY,
    FD_LIMIT_HDF5_SECONDS,
    FD_N_LIMIT
} fd_limit;

int64_t fd_limit_of(fd_limit limit);

/* "NAME=VALUE", VALUE a whole number from 1 on, with K, M, G for the powers of 1024. FD_ERR_INPUT lists the names. */
fd_code fd_limit_set(const char *assignment, fd_error *err);

/* Fails with FD_ERR_INPUT: the message, then which limit that is and how to raise it. */
fd_code fd_limit_exceeded(fd_error *err, fd_limit limit, const char *format, ...) FD_PRINTF(3, 4);

#endif

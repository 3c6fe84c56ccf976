/* Slices as NumPy writes them: "[3:5, 2, :8]", "[-1]", "[::2]"; steps are positive. */
#ifndef FD_CLI_INSPECT_SLICE_H
#define FD_CLI_INSPECT_SLICE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { FD_SLICE_MAX_AXIS = 5 }; /* the position, then a tensor's dimensions */

typedef struct fd_slice_axis {
    bool is_index; /* "2": one element; `start` */
    bool has_start, has_stop;
    int64_t start, stop, step; /* as written: may be negative, but the step */
} fd_slice_axis;

typedef struct fd_slice {
    fd_slice_axis axes[FD_SLICE_MAX_AXIS];
    int32_t n_axis; /* axes written; the others are whole */
} fd_slice;

typedef struct fd_range {
    int64_t first, count, step;
} fd_range;

/* Parses "[…]" (NULL or "": everything). FD_ERR_INPUT names the part that is not understood. */
fd_code fd_slice_parse(const char *text, fd_slice *out, fd_error *err);

/* The elements axis `i` selects of `length`; a range past the end is cut, as in NumPy. False when a single index is
 * outside. */
bool fd_slice_resolve(const fd_slice *slice, int32_t i, int64_t length, fd_range *out);

#endif

#include "cli/against/mxfp4.h"

#include <math.h>
#include <stdlib.h>

enum { BYTES = 16 }; /* of a block */

bool fd_is_mxfp4(const fd_array *blocks, const fd_array *scales) {
    bool fits = blocks->type == FD_ARRAY_U8 && scales->type == FD_ARRAY_U8 && blocks->rank == 4 && scales->rank == 3 &&
                blocks->shape[3] == BYTES;
    for (int i = 0; fits && i < 3; i++) fits = blocks->shape[i] == scales->shape[i] && blocks->shape[i] > 0;
    return fits;
}

int64_t fd_mxfp4_rows(const fd_array *blocks) {
    return blocks->shape[0] * blocks->shape[1];
}

int64_t fd_mxfp4_width(const fd_array *blocks) {
    return blocks->shape[2] * BYTES * 2;
}

static void fetch_row(const fd_array *of_all, int64_t r, double *to) {
    const fd_array expert = fd_array_at(of_all, 0, r / of_all->shape[1]);
    const fd_array row = fd_array_at(&expert, 0, r % of_all->shape[1]);
    fd_array_fetch(&row, to);
}

void fd_mxfp4_fetch(const fd_array *blocks, const fd_array *scales, int64_t r, double *to) {
    static const double values[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};
    const int64_t n = blocks->shape[2];
    double *bytes = malloc(sizeof *bytes * (size_t)(n * (BYTES + 1))), *scale = bytes ? bytes + n * BYTES : NULL;
    if (bytes) fetch_row(blocks, r, bytes);
    if (bytes) fetch_row(scales, r, scale);
    for (int64_t i = 0; i < n * BYTES; i++) {
        const int byte = bytes ? (int)bytes[i] : 0;
        const double unit = bytes ? ldexp(1, (int)scale[i / BYTES] - 127) : NAN;
        to[2 * i] = values[byte & 15] * unit;
        to[2 * i + 1] = values[byte >> 4] * unit;
    }
    free(bytes);
}

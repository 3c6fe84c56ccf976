/* A tensor's selected elements as one array. */
#ifndef FD_CLI_INSPECT_GATHER_H
#define FD_CLI_INSPECT_GATHER_H

#include "cli/inspect/inspect.h"

typedef struct fd_gathered {
    int rank; /* positions first; axes that an index selects are left out */
    int64_t shape[FD_SLICE_MAX_AXIS];
    double *data; /* [product of shape] owned; NaN where a position has no such key */
    int64_t n;
} fd_gathered;

/* FD_ERR_INPUT when the slice selects nothing. */
fd_code fd_inspect_gather(const fd_trace *trace, int32_t node, const fd_slice *slice, fd_gathered *out, fd_error *err);
void fd_gathered_free(fd_gathered *gathered);

/* FILE.npy, FILE.csv (a line each row of the last axis) or FILE.png (grey, a pixel an element, darker is larger). */
fd_code fd_inspect_export(const fd_gathered *of, const char *path, fd_error *err);

/* 24 bins between the smallest and the largest finite element, as text on standard output. */
void fd_inspect_histogram(const char *name, const fd_gathered *of);

/* Every tensor that both traces hold: NMSE, cosine and the largest distance, as text or JSON; `glob` NULL: all. */
fd_code fd_inspect_beside(const fd_trace *trace, const fd_trace *other, const char *glob, bool json, fd_error *err);

#endif

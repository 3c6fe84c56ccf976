/* Which bytes of a view on a device are copied: as few copies as its strides allow. */
#ifndef FD_DUMPERS_CLIENT_BLOCKS_H
#define FD_DUMPERS_CLIENT_BLOCKS_H

#include "dumpers/client/tracer.h"

/* The view as axes: the rows, then the dimensions of one. The first `n_outer` axes are walked, each combination of
 * their indices is one contiguous copy of `block` elements, and the copies follow one another. */
typedef struct fd_tracer_blocks {
    int n_axis, n_outer;
    int64_t n[1 + FD_TRACER_ROW_DIM], stride[1 + FD_TRACER_ROW_DIM];
    int64_t block, n_block; /* elements of a copy, copies */
} fd_tracer_blocks;

fd_tracer_blocks fd_tracer_blocks_of(const fd_tracer_view *view);
int64_t fd_tracer_block_offset(const fd_tracer_blocks *blocks, int64_t block); /* elements from the view's first */
/* The same tensor where the copies lie, from `data` on. */
fd_tracer_view fd_tracer_blocks_view(const fd_tracer_view *view, const fd_tracer_blocks *blocks, const char *data);

#endif

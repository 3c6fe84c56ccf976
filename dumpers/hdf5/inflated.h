/* Filtered chunks as they are in memory. The last ones are kept: rows of one chunk are asked for one after another, and
 * tensors in turns. From any number of threads. */
#ifndef FD_DUMPERS_HDF5_INFLATED_H
#define FD_DUMPERS_HDF5_INFLATED_H

#include "dumpers/hdf5/index.h"

enum { FD_H5_INFLATED_MOST = 64 << 20 }; /* bytes of a chunk, and of all that are kept; a larger one is the library's */

typedef struct fd_h5_inflated fd_h5_inflated;

/* Of the file whose bytes these are: a descriptor or memory that outlives it. NULL: no memory. */
fd_h5_inflated *fd_h5_inflated_new(const fd_h5_bytes *file);
void fd_h5_inflated_free(fd_h5_inflated *inflated); /* NULL is fine */
/* Of all that are kept, where that is less than FD_H5_INFLATED_MOST; one chunk may be more. NULL is fine. */
void fd_h5_inflated_limit(fd_h5_inflated *inflated, size_t bytes);

/* Has *out be the chunk's elements, until fd_h5_inflated_end of what is returned; by a thread that has no other. NULL
 * where it is damaged, too large, or there is no memory; or `inflated` is NULL. */
typedef struct fd_h5_piece fd_h5_piece;
fd_h5_piece *fd_h5_inflated_begin(fd_h5_inflated *inflated, const fd_h5_layout *layout, int rank, fd_h5_chunk chunk,
                                  fd_h5_bytes *out);
void fd_h5_inflated_end(fd_h5_inflated *inflated, fd_h5_piece *piece);

#endif

/* Where each chunk of a dataset lies: the five chunk indexes of HDF5 (File Format Specification 3.0, sections III.A,
 * VII and VIII). Blocks that carry a checksum are refused when it is wrong, as HDF5 does. */
#ifndef FD_DUMPERS_HDF5_INDEX_H
#define FD_DUMPERS_HDF5_INDEX_H

#include "dumpers/hdf5/object.h"

/* Chunks of the whole dataset, 1 for a contiguous one; -1 when there are more than `limit`. */
int64_t fd_h5_chunk_count(const fd_h5_shape *shape, const fd_h5_layout *layout, int64_t limit);

typedef struct fd_h5_chunk {
    uint64_t address;     /* FD_H5_NOWHERE: never written */
    uint32_t bytes, mask; /* of one that is filtered: as it lies there, and the filters that were left out */
} fd_h5_chunk;

/* Fills chunks [fd_h5_chunk_count] in row-major order. Every one that was written lies inside the file. False when the
 * index cannot be read: ask the library. */
bool fd_h5_find_chunks(const fd_h5_bytes *bytes, const fd_h5_shape *shape, const fd_h5_layout *layout,
                       fd_h5_chunk *chunks);

#endif

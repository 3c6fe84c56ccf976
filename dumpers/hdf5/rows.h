/* A dataset's rows, read without the library: numbers, and tables of integers and texts, in one block or in chunks. */
#ifndef FD_DUMPERS_HDF5_ROWS_H
#define FD_DUMPERS_HDF5_ROWS_H

#include "dumpers/hdf5/reader.h"

typedef struct fd_h5_set {
    fd_h5_shape shape;
    fd_h5_layout layout; /* its element_bytes are those of `stored` */
    fd_h5_stored stored;
} fd_h5_set;

/* Bytes that its elements take in the file, as H5Dget_storage_size says; false: not known. */
bool fd_h5_set_bytes(const fd_h5_bytes *bytes, const fd_h5_set *set, uint64_t *out);

/* True: `out` holds the block, whose type is that which set->stored was read for. False where HDF5 would convert, where
 * something was never written, or is damaged. */
bool fd_h5_set_rows(const fd_h5_bytes *bytes, fd_h5_inflated *inflated, const fd_h5_set *set, const fd_h5_block *block,
                    void *out);

#endif

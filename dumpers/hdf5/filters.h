/* What a chunk's bytes went through on their way into the file (HDF5 File Format Specification 3.0, IV.A.2.l): deflate,
 * shuffle, Fletcher's checksum. Others are left to the library. */
#ifndef FD_DUMPERS_HDF5_FILTERS_H
#define FD_DUMPERS_HDF5_FILTERS_H

#include "dumpers/hdf5/bytes.h"

typedef enum fd_h5_filter { FD_H5_DEFLATE = 1, FD_H5_SHUFFLE = 2, FD_H5_FLETCHER = 3 } fd_h5_filter;

typedef struct fd_h5_filters {
    bool any, known; /* known: they are those above, each once at most */
    uint8_t n;
    uint8_t id[3];     /* [n] in the order in which they were put on */
    uint32_t shuffled; /* bytes of the elements that were shuffled; 0: none were */
} fd_h5_filters;

/* *out says that there are some; what is not understood is not `known`. */
void fd_h5_filters_read(fd_h5_cursor message, fd_h5_filters *out);

enum { FD_H5_FILTER_ROOM = 4 }; /* bytes that a filter may add to those of the chunk: a checksum */

/* What a chunk of `bytes` takes in the file: can it be true? */
bool fd_h5_filters_fit(const fd_h5_filters *filters, uint32_t mask, uint64_t packed, uint64_t bytes);

/* Takes the filters off. `packed` [n] is written to; out [bytes + FD_H5_FILTER_ROOM], of which `bytes` are the chunk.
 * A bit of `mask`: that filter was left out. False when something else comes out, or there is no memory. */
bool fd_h5_filters_undo(const fd_h5_filters *filters, uint32_t mask, uint8_t *packed, size_t n, uint8_t *out,
                        size_t bytes);

#endif

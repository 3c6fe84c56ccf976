/* A fractal heap (File Format Specification 3.0, III.G): where a large group of the newer format keeps its links. */
#ifndef FD_DUMPERS_HDF5_HEAP_H
#define FD_DUMPERS_HDF5_HEAP_H

#include "dumpers/hdf5/bytes.h"

/* Shows `take` every link message of the group whose heap and tree of names are at these addresses, in no order of
 * names. At most `limit` of them; `user` is take's. False when one was not taken, or something is damaged or not
 * understood. */
bool fd_h5_heap_links(const fd_h5_bytes *bytes, uint64_t heap, uint64_t names, size_t limit,
                      bool (*take)(fd_h5_cursor link, void *user), void *user);

#endif

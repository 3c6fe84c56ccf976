/* A dataset's chunks while its index is walked: index.c has the arrays, btree.c the trees, walk.c what both need. */
#ifndef FD_DUMPERS_HDF5_WALK_H
#define FD_DUMPERS_HDF5_WALK_H

#include "dumpers/hdf5/index.h"

enum { FD_H5_WALK_MAX_BLOCK = 1 << 20 }; /* bytes of one block of an index */

typedef struct fd_h5_walk {
    const fd_h5_bytes *bytes;
    const fd_h5_layout *layout;
    int rank;
    hsize_t n[FD_H5_MAX_RANK];     /* chunks along each dimension */
    hsize_t n_max[FD_H5_MAX_RANK]; /* likewise within the shape's limits; 0: unlimited */
    uint64_t chunk_bytes;
    int64_t n_chunk;
    int64_t budget; /* blocks the index may still have: a damaged one may point in circles */
    uint64_t *out;
} fd_h5_walk;

/* ---- walk.c ---- */
/* Where chunk number `at` lies. False: it would reach beyond the file. */
bool fd_h5_walk_put_at(fd_h5_walk *w, uint64_t at, uint64_t address);
/* A chunk by its place in the grid; those beyond the shape (it was cut) are ignored. */
bool fd_h5_walk_put(fd_h5_walk *w, const uint64_t *scaled, uint64_t address);
/* Reads a block that ends with a checksum; free() it. NULL: not there or damaged. */
uint8_t *fd_h5_walk_block(fd_h5_walk *w, uint64_t at, uint64_t n, const char *signature, fd_h5_cursor *c);

/* ---- btree.c ---- */
bool fd_h5_walk_btree_1(fd_h5_walk *w);
bool fd_h5_walk_btree_2(fd_h5_walk *w);

#endif

/* A dataset's chunks while its index is walked: index.c has the arrays, btree.c the trees, walk.c what both need. The
 * names of a large group are in a tree of the newer kind, too (heap.c). */
#ifndef FD_DUMPERS_HDF5_WALK_H
#define FD_DUMPERS_HDF5_WALK_H

#include "dumpers/hdf5/index.h"

enum { FD_H5_WALK_MAX_BLOCK = 1 << 20 }; /* bytes of one block of an index */

typedef struct fd_h5_blocks {
    const fd_h5_bytes *bytes;
    int64_t budget; /* blocks that may still be read: a damaged index may point in circles */
} fd_h5_blocks;

typedef struct fd_h5_walk {
    fd_h5_blocks blocks;
    const fd_h5_layout *layout;
    int rank;
    hsize_t n[FD_H5_MAX_RANK];     /* chunks along each dimension */
    hsize_t n_max[FD_H5_MAX_RANK]; /* likewise within the shape's limits; 0: unlimited */
    uint64_t chunk_bytes;
    uint64_t entry; /* bytes of an array's element */
    int64_t n_chunk;
    fd_h5_chunk *out;
} fd_h5_walk;

/* ---- walk.c ---- */
/* Where chunk number `at` lies. False: it would reach beyond the file. */
bool fd_h5_walk_put_at(fd_h5_walk *w, uint64_t at, fd_h5_chunk chunk);
/* A chunk by its place in the grid; those beyond the shape (it was cut) are ignored. */
bool fd_h5_walk_put(fd_h5_walk *w, const uint64_t *scaled, fd_h5_chunk chunk);
/* A chunk in `entry` bytes, as arrays and the newer trees have it; false where it is not what filters ask for. */
bool fd_h5_walk_take(const fd_h5_walk *w, fd_h5_cursor *c, uint64_t entry, fd_h5_chunk *out);
/* Reads a block that ends with a checksum; free() it. NULL, and a bad cursor: not there or damaged. */
uint8_t *fd_h5_block_read(fd_h5_blocks *blocks, uint64_t at, uint64_t n, const char *signature, fd_h5_cursor *c);

/* ---- btree.c ---- */
bool fd_h5_walk_btree_1(fd_h5_walk *w);
bool fd_h5_walk_btree_2(fd_h5_walk *w);

typedef struct fd_h5_records {     /* of a tree of the newer kind */
    uint64_t address, type, bytes; /* type: what they say (III.A.2); bytes: of one of them */
    bool (*take)(fd_h5_cursor *record, void *user);
    void *user;
} fd_h5_records;
/* Takes every record; false when one was not taken or the tree cannot be read. */
bool fd_h5_btree_2(fd_h5_blocks *blocks, const fd_h5_records *records);

#endif

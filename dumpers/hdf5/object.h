/* What a dataset's object header says: shape, element type, layout and a few attributes, read from the file's bytes.
 *
 * HDF5 takes 50 to 150 microseconds to open a dataset and read its attributes, a trace may have tens of thousands of
 * them, and HDF5 1.10 has no way to list a dataset's chunks in linear time. Only what traces are made of is understood
 * (HDF5 File Format Specification 3.0: object headers of version 1 and 2, layouts of version 3 and 4, no shared
 * messages, the filters of filters.h, addresses of 8 bytes); for everything else fd_h5_object_read says no, and the
 * library is asked. */
#ifndef FD_DUMPERS_HDF5_OBJECT_H
#define FD_DUMPERS_HDF5_OBJECT_H

#include "dumpers/hdf5/filters.h"
#include "dumpers/hdf5/type.h"

typedef enum fd_h5_index {
    FD_H5_CONTIGUOUS, /* one block at `address` of `bytes` */
    FD_H5_BTREE_1,
    FD_H5_SINGLE_CHUNK,
    FD_H5_IMPLICIT,
    FD_H5_FIXED_ARRAY,
    FD_H5_EXTENSIBLE_ARRAY,
    FD_H5_BTREE_2,
} fd_h5_index;

typedef struct fd_h5_layout {
    fd_h5_index index;
    uint64_t address;              /* of the block, the only chunk or the index; FD_H5_NOWHERE: nothing was written */
    uint64_t bytes;                /* FD_H5_CONTIGUOUS; of the single chunk that is filtered */
    uint32_t mask;                 /* of that chunk */
    hsize_t chunk[FD_H5_MAX_RANK]; /* elements; the whole shape for FD_H5_CONTIGUOUS */
    hsize_t max[FD_H5_MAX_RANK];   /* the shape's limits: chunks are numbered within them. H5S_UNLIMITED */
    uint32_t element_bytes;
    fd_h5_filters filters;
    bool raw_edges; /* chunks that reach beyond the shape are not filtered */
    bool readable;  /* past the library */
} fd_h5_layout;

typedef struct fd_h5_attribute { /* one that traces use */
    fd_h5_found found;
    int64_t value; /* integers */
    char text[24]; /* strings, cut */
} fd_h5_attribute;

typedef struct fd_h5_object {
    fd_h5_shape shape;
    uint32_t element; /* FD_F32, FD_F64, FD_F16, FD_BF16 or FD_H5_WORD16, all little-endian */
    fd_h5_layout layout;
    fd_h5_attribute dtype, op;                                      /* strings */
    fd_h5_attribute seq, layer, over_kv, first_position, last_rows; /* integers */
} fd_h5_object;

/* True when the file's superblock has what the two functions below rely on: it begins the file, and addresses and
 * lengths have 8 bytes. */
bool fd_h5_plain_file(const fd_h5_bytes *bytes);
/* The same, and where the root group's header is. */
bool fd_h5_superblock_read(const fd_h5_bytes *bytes, uint64_t *root);

/* Where the last object was read: headers lie close together, and so do their attributes' strings. {0} at first. */
typedef struct fd_h5_nearby {
    fd_h5_window headers, strings;
} fd_h5_nearby;

/* Reads the object header at `address`. False: ask the library, which also finds what is wrong. */
bool fd_h5_object_read(const fd_h5_bytes *bytes, fd_h5_nearby *nearby, uint64_t address, fd_h5_object *out);
/* The same, of those too whose elements are left to the library: not layout.readable. */
bool fd_h5_object_describe(const fd_h5_bytes *bytes, fd_h5_nearby *nearby, uint64_t address, fd_h5_object *out);

#endif

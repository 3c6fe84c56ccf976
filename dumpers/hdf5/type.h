/* Types of elements: as a caller wants them in memory, as a file says them, and how one becomes the other. */
#ifndef FD_DUMPERS_HDF5_TYPE_H
#define FD_DUMPERS_HDF5_TYPE_H

#include "dumpers/hdf5/bytes.h"
#include "dumpers/hdf5/h5.h"

/* ---- in memory ---- */

typedef enum fd_h5_number {
    FD_H5_NO_NUMBER,
    FD_H5_WORDS, /* 16-bit elements of any kind, unconverted but for this machine's byte order */
    FD_H5_I32,
    FD_H5_U64,
    FD_H5_F32,
    FD_H5_F64,
} fd_h5_number;

typedef struct fd_h5_member { /* a column of a table's row */
    const char *name;
    size_t offset;
    size_t text; /* bytes of a text, padded with NULs; 0: an int32_t */
} fd_h5_member;

typedef struct fd_h5_type {
    fd_h5_number number; /* FD_H5_NO_NUMBER: a row of a table */
    size_t bytes;        /* of one element */
    const fd_h5_member *members;
    size_t n_member;
} fd_h5_type;

extern const fd_h5_type fd_h5_words, fd_h5_i32, fd_h5_u64, fd_h5_f32, fd_h5_f64;

/* The library's type of it, for the caller to H5Tclose; not of fd_h5_words. */
hid_t fd_h5_type_make(const fd_h5_type *type);

/* ---- in a file ---- */

enum { FD_H5_WORD16 = 1000 }; /* 16-bit integers; the other elements are types of base/dtype.h */

typedef enum fd_h5_class { FD_H5_OTHER, FD_H5_IS_FLOAT, FD_H5_IS_INTEGER, FD_H5_IS_TABLE } fd_h5_class;

typedef struct fd_h5_copy { /* bytes of a stored element that are bytes of one in memory */
    size_t from, to, bytes;
} fd_h5_copy;

typedef struct fd_h5_stored {
    fd_h5_class class;
    size_t bytes;     /* of one element, at least 1 */
    uint32_t element; /* FD_F32, FD_F64, FD_F16, FD_BF16 or FD_H5_WORD16, all little-endian; FD_DTYPE_LIMIT others */
    bool has_names;   /* FD_H5_IS_TABLE: with a column `name` */
    fd_h5_copy copies[32]; /* [n_copy] they make the wanted type; what a table lacks stays as it is in memory */
    size_t n_copy;         /* 0: nothing was wanted, or it takes more than copying */
} fd_h5_stored;

/* A datatype message (File Format Specification 3.0, IV.A.2.d): numbers, and tables of integers and texts. False for
 * others. `wanted` may be NULL. */
bool fd_h5_type_read(fd_h5_cursor message, const fd_h5_type *wanted, fd_h5_stored *out);

#endif

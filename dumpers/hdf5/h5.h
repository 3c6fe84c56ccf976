/* HDF5 with our error codes: what every file of this folder uses to talk to the library.
 *
 * HDF5 prints its own error stack on stderr unless told not to; the public functions of this folder bracket themselves
 * with fd_h5_begin and fd_h5_end, which leave the caller's setting as it was, and let one thread of ours in at a time:
 * Debian's HDF5 takes one lock around every call, other builds take none. Nothing that waits for another of our threads
 * stands between the two.
 *
 * Files from elsewhere are read through reader.h alone; these functions are for files that this process writes, and for
 * the child that reads. */
#ifndef FD_DUMPERS_HDF5_H5_H
#define FD_DUMPERS_HDF5_H5_H

#include <hdf5.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct fd_h5_guard {
    H5E_auto2_t print;
    void *data;
} fd_h5_guard;

fd_h5_guard fd_h5_begin(void); /* nests */
void fd_h5_end(fd_h5_guard guard);

/* The lock alone, around a fork. */
void fd_h5_lock(void);
void fd_h5_unlock(void);
void fd_h5_renew_lock(void); /* in the child: a recursive lock belongs to the thread that locked it */

/* Debug builds and those with ThreadSanitizer end the program where this thread does not hold the lock; not while the
 * program ends, when HDF5 closes what was left open. */
void fd_h5_assert_locked(void);

/* As fd_fail, with HDF5's innermost description appended ("…: HDF5: …"). Call it before any other HDF5 call: the next
 * one clears the stack. */
fd_code fd_h5_fail(fd_error *err, fd_code code, const char *format, ...) FD_PRINTF(3, 4);

/* HDF5's innermost description of what failed, one line; "" for none. */
void fd_h5_reason(char out[512]);

/* Closes an id of any kind and leaves the error stack as it is; negative ids are fine. */
void fd_h5_release(hid_t id);

/* Scalar attributes; an existing one is replaced, in place where its type is the same: a kill then leaves the old value
 * or the new one. Strings are variable-length UTF-8, so that h5py shows them as str. */
bool fd_h5_put_string(hid_t object, const char *name, const char *value);
bool fd_h5_put_int(hid_t object, const char *name, int32_t value);
/* A list of strings, variable-length UTF-8, [n]. */
bool fd_h5_put_strings(hid_t object, const char *name, const char *const *values, size_t n);

typedef enum fd_h5_found { FD_H5_ABSENT, FD_H5_FOUND, FD_H5_WRONG } fd_h5_found;

/* Fixed- or variable-length string attribute, scalar or of one element, cut at size - 1 bytes. `wrong` when it is there
 * but is no string. With `out` NULL only *length (may be NULL) is set: bytes without the NUL. */
fd_h5_found fd_h5_get_string(hid_t object, const char *name, char *out, size_t size, size_t *length);
/* Any integer or boolean type. */
fd_h5_found fd_h5_get_int(hid_t object, const char *name, int64_t *out);

/* True when `name` is a link of `group` that leads to an object. */
bool fd_h5_has(hid_t group, const char *name);

typedef struct fd_h5_link {
    const char *name; /* in the same allocation */
    uint64_t address; /* of the object's header in the file; UINT64_MAX when the link says a path or another file */
} fd_h5_link;
/* A group's links in order of name; freed with free(). NULL, and *n 0, when they cannot be listed or there are more
 * than `limit`. */
fd_h5_link *fd_h5_links(hid_t group, size_t limit, size_t *n);

enum { FD_H5_MAX_RANK = 5 };
typedef struct fd_h5_shape {
    int rank;
    hsize_t dim[FD_H5_MAX_RANK];
} fd_h5_shape;
/* False for what is not a simple dataspace of rank 1 … FD_H5_MAX_RANK; shape->rank then says what was found. */
bool fd_h5_shape_of(hid_t dataset, fd_h5_shape *shape);
/* "[7, 8, 64]" into out; returns out. */
const char *fd_h5_shape_text(const fd_h5_shape *shape, char out[128]);

/* Reads or writes the block at `start` of `count` (rank of the dataset); memory is contiguous. */
bool fd_h5_read_block(hid_t dataset, hid_t type, int rank, const hsize_t *start, const hsize_t *count, void *out);
bool fd_h5_write_block(hid_t dataset, hid_t type, int rank, const hsize_t *start, const hsize_t *count,
                       const void *data);

#endif

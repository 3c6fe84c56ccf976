/* The bytes of an HDF5 file, for what is read past the HDF5 library (object.h, index.h): every access is checked
 * against the file's size, and nothing is mapped but the elements of a complete trace (dumpers/store/place.h), so that a
 * file cut short while it is read is an error, no signal. Safe from any number of threads. */
#ifndef FD_DUMPERS_HDF5_BYTES_H
#define FD_DUMPERS_HDF5_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct fd_h5_bytes {
    int fd;              /* -1: `data` holds the file */
    const uint8_t *data; /* [size]; NULL with a descriptor. Borrowed */
    uint64_t size;
} fd_h5_bytes;

/* Copies bytes [at, at + n) to `out`; false when they are not all in the file. */
bool fd_h5_bytes_read(const fd_h5_bytes *bytes, uint64_t at, size_t n, void *out);

/* Opens a file that HDF5 could open: *out has its descriptor, the caller's to close. FD_ERR_INPUT says what is there
 * instead; `expected` is "a trace". *marked: it says that it is being written. Ours never do (driver.h), another
 * program's may. */
fd_code fd_h5_open_file(const char *path, const char *expected, fd_h5_bytes *out, bool *marked, fd_error *err);

/* A piece of the file that was read last: small blocks that lie close together come with one read. One thread's. */
enum { FD_H5_WINDOW = 4096 }; /* a page: one lookup in the system's cache */
typedef struct fd_h5_window {
    uint64_t at;
    size_t n; /* bytes it holds; 0 at first */
    uint8_t data[FD_H5_WINDOW];
} fd_h5_window;

/* Bytes [at, at + n), valid until the next call; NULL when they are not all in the file or n > FD_H5_WINDOW. */
const uint8_t *fd_h5_window_get(const fd_h5_bytes *bytes, fd_h5_window *window, uint64_t at, size_t n);

/* The checksum of HDF5's metadata (Jenkins' lookup3, "hashlittle" from 0), as the last 4 bytes of a block hold it. */
uint32_t fd_h5_checksum(const uint8_t *data, size_t n);

/* True when `sum` (4 bytes) is the checksum of these. */
bool fd_h5_has_checksum(const uint8_t *data, size_t n, const uint8_t *sum);
/* True when the block's last 4 bytes are the checksum of those before them. */
bool fd_h5_block_is_whole(const uint8_t *block, size_t n);

/* A cursor over a block in memory; reading past its end sets `bad` and gives zeros. */
typedef struct fd_h5_cursor {
    const uint8_t *at;
    size_t left;
    bool bad;
} fd_h5_cursor;

/* Where the n bytes were; NULL when there are not as many. Inline, as fd_h5_take: a header is hundreds of these. */
static inline const uint8_t *fd_h5_skip(fd_h5_cursor *cursor, size_t n) {
    if (cursor->bad || n > cursor->left) {
        cursor->bad = true;
        return NULL;
    }
    const uint8_t *p = cursor->at;
    cursor->at += n;
    cursor->left -= n;
    return p;
}

/* Little-endian unsigned of n <= 8 bytes. */
static inline uint64_t fd_h5_take(fd_h5_cursor *cursor, size_t n) {
    const uint8_t *p = fd_h5_skip(cursor, n);
    uint64_t value = 0;
    for (size_t i = 0; p && i < n; i++) value |= (uint64_t)p[i] << (8 * i);
    return value;
}

bool fd_h5_expect(fd_h5_cursor *cursor, const char *signature); /* the four letters that begin a block */

#define FD_H5_NOWHERE UINT64_MAX /* HDF5's "undefined address": nothing is stored */

#endif

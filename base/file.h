/* Files are read only where they are files: a FIFO never answers, a terminal or /dev/zero never ends. */
#ifndef FD_BASE_FILE_H
#define FD_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"

/* Opens a regular file for reading. `expected` is "a trace", for messages. Does not wait for whoever holds the other
 * end of a FIFO. *fd is the caller's to close; *size is the file's. FD_ERR_INPUT with what is there instead. */
fd_code fd_file_open(const char *path, const char *expected, int *fd, uint64_t *size, fd_error *err);

/* A whole regular file in memory, read-only, until fd_file_unmap. FD_ERR_IO when it cannot be opened; FD_ERR_INPUT when
 * something else is there, or nothing in it. A file that another process cuts short meanwhile raises SIGBUS where it is
 * read: fd_file_mapped_at then knows its name. */
fd_code fd_file_map(const char *path, const char *expected, const void **data, size_t *size, fd_error *err);
void fd_file_unmap(const void *data, size_t size);
/* Bytes [at, at + size) of an open file likewise, all of which it has; `at` begins a page. NULL: they cannot be mapped. */
const void *fd_file_map_part(int fd, const char *path, uint64_t at, size_t size);
/* The path of the file that is mapped around this address; NULL: none that is known. For a signal's handler. */
const char *fd_file_mapped_at(const void *address);

/* All of a text of at most the limit's bytes, with a NUL behind it; freed by the caller. A pipe that somebody writes to
 * will do, as a shell's <(…) is one; silence of five seconds ends it. FD_ERR_INPUT also when it is longer. */
fd_code fd_file_read(const char *path, const char *expected, fd_limit limit, char **text, size_t *size, fd_error *err);

#endif

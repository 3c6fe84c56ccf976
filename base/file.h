/* Files are read only where they are files: a FIFO never answers, a terminal or /dev/zero never ends. */
#ifndef FD_BASE_FILE_H
#define FD_BASE_FILE_H

#include <stdint.h>

#include "base/status.h"

/* Opens a regular file for reading. `expected` is "a trace", for messages. Does not wait for whoever holds the other
 * end of a FIFO. *fd is the caller's to close; *size is the file's. FD_ERR_INPUT with what is there instead. */
fd_code fd_file_open(const char *path, const char *expected, int *fd, uint64_t *size, fd_error *err);

#endif

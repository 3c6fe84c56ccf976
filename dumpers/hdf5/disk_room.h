/* Is there room on the disk before HDF5 starts to write? HDF5 cannot take a half-done write back: once one fails, its
 * cached metadata no longer fits the file. So every step asks first, and a full disk is found while the file is
 * whole. */
#ifndef FD_DUMPERS_HDF5_DISK_ROOM_H
#define FD_DUMPERS_HDF5_DISK_ROOM_H

#include <stdint.h>

#include "base/status.h"

/* `fd` is the open file, `path` its name for messages, `bytes` what is to be appended at `end`. Near a full disk the space is
 * really reserved (fallocate beyond the end, size unchanged); with plenty free it is only looked up. The limit on file
 * size counts too, before its signal would end the process. FD_ERR_IO with the file, the bytes and the reason. */
fd_code fd_disk_room(int fd, const char *path, int64_t end, int64_t bytes, fd_error *err);

#endif

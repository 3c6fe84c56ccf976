#include "dumpers/hdf5/disk_room.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

/* Free space above which another writer is unlikely to take it between the look and the write. */
enum { PLENTY = 256 << 20 };

static fd_code refuse(const char *path, int64_t bytes, int reason, fd_error *err) {
    return fd_fail(err, FD_ERR_IO, "%s: no room for %lld more bytes: %s; the finished steps are kept", path,
                   (long long)bytes, strerror(reason));
}

fd_code fd_disk_room(int fd, const char *path, int64_t end, int64_t bytes, fd_error *err) {
    struct statvfs disk;
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        (uint64_t)end + (uint64_t)bytes > (uint64_t)limit.rlim_cur)
        return refuse(path, bytes, EFBIG, err);
    if (fstatvfs(fd, &disk) == 0) {
        uint64_t available = (uint64_t)disk.f_bavail * (uint64_t)disk.f_frsize;
        if (available >= 2 * (uint64_t)bytes + PLENTY) return FD_OK;
    }
    if (bytes > 0 && fallocate(fd, FALLOC_FL_KEEP_SIZE, end, bytes) != 0) {
        if (errno == ENOSPC || errno == EFBIG || errno == EDQUOT) return refuse(path, bytes, errno, err);
        /* a file system that cannot reserve: its word on free space is all there is */
        if (fstatvfs(fd, &disk) == 0 && (uint64_t)disk.f_bavail * (uint64_t)disk.f_frsize < (uint64_t)bytes)
            return refuse(path, bytes, ENOSPC, err);
    }
    return FD_OK;
}

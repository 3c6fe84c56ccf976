#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a FIFO, not a regular file";
    return S_ISCHR(mode) || S_ISBLK(mode) ? "a device, not a regular file" : "not a regular file";
}

fd_code fd_file_open(const char *path, const char *expected, int *fd, uint64_t *size, fd_error *err) {
    struct stat there;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0 || fstat(*fd, &there) != 0) {
        fd_fail(err, FD_ERR_INPUT, "%s: %s", path, strerror(errno));
    } else if (!S_ISREG(there.st_mode)) {
        fd_fail(err, FD_ERR_INPUT, "%s: %s, expected %s", path, kind_of(there.st_mode), expected);
    } else {
        *size = (uint64_t)there.st_size;
        return FD_OK;
    }
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return FD_ERR_INPUT;
}

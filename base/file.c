#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a FIFO, not a regular file";
    return S_ISCHR(mode) || S_ISBLK(mode) ? "a device, not a regular file" : "not a regular file";
}

static fd_code open_kind(const char *path, const char *expected, bool pipes, int *fd, struct stat *there,
                         fd_error *err) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0 || fstat(*fd, there) != 0)
        fd_fail(err, FD_ERR_INPUT, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(there->st_mode) && !(pipes && S_ISFIFO(there->st_mode)))
        fd_fail(err, FD_ERR_INPUT, "%s: %s, expected %s", path, kind_of(there->st_mode), expected);
    else
        return FD_OK;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return FD_ERR_INPUT;
}

fd_code fd_file_open(const char *path, const char *expected, int *fd, uint64_t *size, fd_error *err) {
    struct stat there;
    FD_TRY(open_kind(path, expected, false, fd, &there, err));
    *size = (uint64_t)there.st_size;
    return FD_OK;
}

/* Reads to the end, but no more than *size bytes and one; *size: how many there were. errno says what failed. */
static char *read_to_end(int fd, size_t *size) {
    enum { PATIENCE = 5000 }; /* milliseconds that a pipe's writer may be silent */
    size_t most = *size, room = most < 65536 ? most + 1 : 65536, got = 0;
    char *text = malloc(room + 1);
    while (text && got <= most) {
        ssize_t n = read(fd, text + got, room - got);
        if (n == 0) break;
        if (n < 0 && errno == EINTR) continue;
        struct pollfd wait = {fd, POLLIN, 0};
        if (n < 0 && errno == EAGAIN && poll(&wait, 1, PATIENCE) != 0) continue;
        if (n < 0) {
            if (errno == EAGAIN) errno = ETIMEDOUT;
            free(text);
            return NULL;
        }
        got += (size_t)n;
        if (got < room || got > most) continue;
        room = 2 * room < most + 1 ? 2 * room : most + 1;
        char *grown = realloc(text, room + 1);
        if (!grown) free(text);
        text = grown;
    }
    if (text) text[got] = '\0';
    *size = got;
    return text;
}

fd_code fd_file_read(const char *path, const char *expected, fd_limit limit, char **text, size_t *size, fd_error *err) {
    struct stat there;
    int fd;
    *text = NULL;
    FD_TRY(open_kind(path, expected, true, &fd, &there, err));
    fd_code code = FD_OK;
    *size = (size_t)fd_limit_of(limit);
    *text = read_to_end(fd, size);
    if (!*text)
        code =
            fd_fail(err, errno == ENOMEM ? FD_ERR_MEMORY : FD_ERR_IO, "%s: reading failed: %s", path, strerror(errno));
    else if (*size > (size_t)fd_limit_of(limit))
        code = fd_limit_exceeded(err, limit, "%s: more bytes", path);
    else if (*size == 0 && S_ISFIFO(there.st_mode))
        code = fd_fail(err, FD_ERR_INPUT, "%s: a FIFO that nobody writes to, expected %s", path, expected);
    close(fd);
    if (code == FD_OK) return FD_OK;
    free(*text);
    *text = NULL;
    return code;
}

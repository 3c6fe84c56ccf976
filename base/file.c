#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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
        fd_fail(err, FD_ERR_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(there->st_mode) && !(pipes && S_ISFIFO(there->st_mode)))
        fd_fail(err, FD_ERR_INPUT, "%s: %s, expected %s", path, kind_of(there->st_mode), expected);
    else
        return FD_OK;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return err->code;
}

fd_code fd_file_open(const char *path, const char *expected, int *fd, uint64_t *size, fd_error *err) {
    struct stat there;
    if (open_kind(path, expected, false, fd, &there, err) != FD_OK) return err->code = FD_ERR_INPUT;
    *size = (uint64_t)there.st_size;
    return FD_OK;
}

/* ---- files in memory ---- */

/* Those that are mapped, as far as there is room to remember them. Who looks for a name was stopped while it read that
 * very file, so nobody unmaps it meanwhile. */
static struct mapping {
    _Atomic(const char *) begin; /* NULL: free */
    size_t size;
    char *path;
} mappings[64];

static const char taken[1]; /* `begin` of a slot that is being filled */

static void remember(const char *path, const void *data, size_t size) {
    for (size_t i = 0; i < sizeof mappings / sizeof *mappings; i++) {
        const char *none = NULL;
        if (!atomic_compare_exchange_strong(&mappings[i].begin, &none, taken)) continue;
        mappings[i].size = size;
        mappings[i].path = strdup(path);
        atomic_store(&mappings[i].begin, data);
        return;
    }
}

fd_code fd_file_map(const char *path, const char *expected, const void **data, size_t *size, fd_error *err) {
    struct stat there;
    int fd;
    *data = NULL;
    FD_TRY(open_kind(path, expected, false, &fd, &there, err));
    *size = (size_t)there.st_size;
    void *mapped = *size ? mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    int reason = errno;
    close(fd); /* a mapping outlives its descriptor */
    if (mapped == MAP_FAILED) return fd_fail(err, FD_ERR_IO, "%s: cannot be mapped: %s", path, strerror(reason));
    if (!mapped) return fd_fail(err, FD_ERR_INPUT, "%s: an empty file, expected %s", path, expected);
    remember(path, mapped, *size);
    *data = mapped;
    return FD_OK;
}

const void *fd_file_map_part(int fd, const char *path, uint64_t at, size_t size) {
    void *mapped = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, (off_t)at);
    if (mapped == MAP_FAILED) return NULL;
    remember(path, mapped, size);
    return mapped;
}

void fd_file_unmap(const void *data, size_t size) {
    if (!data) return;
    for (size_t i = 0; i < sizeof mappings / sizeof *mappings; i++) {
        const char *begin = data;
        if (!atomic_compare_exchange_strong(&mappings[i].begin, &begin, taken)) continue;
        free(mappings[i].path);
        mappings[i].path = NULL;
        atomic_store(&mappings[i].begin, NULL);
    }
    munmap((void *)(uintptr_t)data, size);
}

const char *fd_file_mapped_at(const void *address) {
    for (size_t i = 0; i < sizeof mappings / sizeof *mappings; i++) {
        const char *begin = atomic_load(&mappings[i].begin), *at = address;
        if (begin && begin != taken && at >= begin && (size_t)(at - begin) < mappings[i].size) return mappings[i].path;
    }
    return NULL;
}

/* ---- text ---- */

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
    if (open_kind(path, expected, true, &fd, &there, err) != FD_OK) return err->code = FD_ERR_INPUT;
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

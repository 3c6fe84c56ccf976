/* Mapping a GGUF file. */
#include "model/gguf/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static fd_code check_kind(const struct stat *st, const char *path, fd_error *err) {
    if (S_ISDIR(st->st_mode)) return fd_fail(err, FD_ERR_INPUT, "%s: a directory, expected a GGUF file", path);
    if (!S_ISREG(st->st_mode))
        return fd_fail(err, FD_ERR_INPUT, "%s: not a regular file (it must be mapped), expected a GGUF file", path);
    if (st->st_size == 0) return fd_fail(err, FD_ERR_INPUT, "%s: an empty file, expected a GGUF file", path);
    if ((uint64_t)st->st_size > SIZE_MAX)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "%s: larger than this machine's address space", path);
    return FD_OK;
}

fd_code fd_gguf_open(const char *path, fd_gguf **out, fd_error *err) {
    *out = NULL;
    /* O_NONBLOCK: opening a named pipe nobody writes to must answer, not wait; a regular file ignores it. */
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return fd_fail(err, FD_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    struct stat st;
    fd_code code = FD_OK;
    if (fstat(file, &st) != 0)
        code = fd_fail(err, FD_ERR_IO, "%s: cannot stat: %s", path, strerror(errno));
    else
        code = check_kind(&st, path, err);
    void *data = MAP_FAILED;
    size_t size = 0;
    if (code == FD_OK) {
        size = (size_t)st.st_size;
        data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
        if (data == MAP_FAILED) code = fd_fail(err, FD_ERR_IO, "%s: cannot map: %s", path, strerror(errno));
    }
    close(file); /* a mapping outlives its descriptor */
    if (code != FD_OK) return code;

    if (fd_gguf_parse(data, size, out, err) != FD_OK) {
        munmap(data, size);
        return fd_error_prefix(err, "%s", path);
    }
    (*out)->is_mapped = true;
    return FD_OK;
}

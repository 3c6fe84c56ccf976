/* Mapping a GGUF file, closing it, and looking things up in it. */
#include "model/gguf/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
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

void fd_gguf_close(fd_gguf *gguf) {
    if (!gguf) return;
    if (gguf->is_mapped) munmap((void *)(uintptr_t)gguf->data, gguf->size);
    free(gguf->kv);
    free(gguf->tensor);
    free(gguf->kv_by_name);
    free(gguf->tensor_by_name);
    free(gguf->by_offset);
    free(gguf);
}

uint32_t fd_gguf_version(const fd_gguf *gguf) {
    return gguf->version;
}
uint64_t fd_gguf_alignment(const fd_gguf *gguf) {
    return gguf->alignment;
}
size_t fd_gguf_file_size(const fd_gguf *gguf) {
    return gguf->size;
}
const void *fd_gguf_file_data(const fd_gguf *gguf) {
    return gguf->data;
}
uint64_t fd_gguf_data_offset(const fd_gguf *gguf) {
    return gguf->data_offset;
}

size_t fd_gguf_n_kv(const fd_gguf *gguf) {
    return gguf->n_kv;
}
size_t fd_gguf_n_tensor(const fd_gguf *gguf) {
    return gguf->n_tensor;
}
const fd_gguf_kv *fd_gguf_kv_at(const fd_gguf *gguf, size_t i) {
    return i < gguf->n_kv ? &gguf->kv[i] : NULL;
}
const fd_gguf_tensor *fd_gguf_tensor_at(const fd_gguf *gguf, size_t i) {
    return i < gguf->n_tensor ? &gguf->tensor[i] : NULL;
}

const fd_gguf_kv *fd_gguf_find(const fd_gguf *gguf, const char *key) {
    const fd_gguf_name *found = fd_gguf_find_name(gguf->kv_by_name, gguf->n_kv, key);
    return found ? &gguf->kv[found->index] : NULL;
}

const fd_gguf_tensor *fd_gguf_find_tensor(const fd_gguf *gguf, const char *name) {
    const fd_gguf_name *found = fd_gguf_find_name(gguf->tensor_by_name, gguf->n_tensor, name);
    return found ? &gguf->tensor[found->index] : NULL;
}

/* Writes a collected GGUF: header, then each tensor's data, to a temporary file renamed to `path` when whole. */
#include "model/gguf_writer/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct output {
    const char *path; /* the name messages use: the one the caller asked for */
    int file;
    uint64_t at;
} output;

static fd_code io_error(const output *out, const char *what, fd_error *err) {
    return fd_fail(err, FD_ERR_IO, "%s: cannot %s: %s", out->path, what, strerror(errno));
}

static fd_code write_bytes(output *out, const void *data, uint64_t size, fd_error *err) {
    const uint8_t *from = data;
    while (size > 0) {
        size_t piece = size < (1u << 30) ? (size_t)size : 1u << 30; /* Linux writes at most 2 GiB a call */
        ssize_t written = write(out->file, from, piece);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0)
            return fd_fail(err, FD_ERR_IO, "%s: cannot write at byte %" PRIu64 ": %s", out->path, out->at,
                           strerror(errno));
        from += written;
        size -= (uint64_t)written;
        out->at += (uint64_t)written;
    }
    return FD_OK;
}

static fd_code pad(output *out, uint64_t alignment, fd_error *err) {
    static const uint8_t zeros[4096];
    uint64_t end;
    if (!fd_gguf_align(out->at, alignment, &end))
        return fd_fail(err, FD_ERR_INPUT, "%s: would exceed 2^64 bytes", out->path);
    while (out->at < end) {
        uint64_t piece = end - out->at < sizeof zeros ? end - out->at : sizeof zeros;
        FD_TRY(write_bytes(out, zeros, piece, err));
    }
    return FD_OK;
}

/* Sets every tensor's offset and refuses two of the same name. */
static fd_code lay_out(fd_gguf_writer *writer, fd_error *err) {
    uint64_t offset = 0;
    fd_gguf_name *names = calloc(writer->n_tensor + 1, sizeof *names);
    if (!names) return fd_fail(err, FD_ERR_MEMORY, "out of memory for %zu tensor names", writer->n_tensor);
    fd_code code = FD_OK;
    for (size_t i = 0; i < writer->n_tensor && code == FD_OK; i++) {
        fd_gguf_tensor *tensor = &writer->tensor[i].tensor;
        names[i] = (fd_gguf_name){{tensor->name, strlen(tensor->name)}, i};
        tensor->offset = offset;
        if (__builtin_add_overflow(offset, tensor->bytes, &offset) ||
            !fd_gguf_align(offset, writer->alignment, &offset))
            code = fd_fail(err, FD_ERR_INPUT, "tensor %s ends past 2^64 bytes", tensor->name);
    }
    if (code == FD_OK) {
        size_t twice = fd_gguf_sort_names(names, writer->n_tensor);
        if (twice < writer->n_tensor)
            code = fd_fail(err, FD_ERR_INPUT, "tensor %s was put twice", names[twice].name.data);
    }
    free(names);
    return code;
}

static fd_code append_header(const fd_gguf_writer *writer, fd_gguf_buffer *to, fd_error *err) {
    const uint32_t version = 3;
    const uint64_t n_tensor = writer->n_tensor, n_kv = writer->n_kv;
    FD_TRY(fd_gguf_append(to, FD_GGUF_MAGIC, 4, err));
    FD_TRY(fd_gguf_append(to, &version, sizeof version, err));
    FD_TRY(fd_gguf_append(to, &n_tensor, sizeof n_tensor, err));
    FD_TRY(fd_gguf_append(to, &n_kv, sizeof n_kv, err));
    FD_TRY(fd_gguf_append(to, writer->kv_bytes.data, writer->kv_bytes.size, err));
    for (size_t i = 0; i < writer->n_tensor; i++) {
        const fd_gguf_tensor *tensor = &writer->tensor[i].tensor;
        const uint32_t n_dim = (uint32_t)tensor->n_dim;
        FD_TRY(fd_gguf_append_string(to, (fd_string){tensor->name, strlen(tensor->name)}, err));
        FD_TRY(fd_gguf_append(to, &n_dim, sizeof n_dim, err));
        FD_TRY(fd_gguf_append(to, tensor->shape, n_dim * sizeof *tensor->shape, err));
        FD_TRY(fd_gguf_append(to, &tensor->dtype, sizeof tensor->dtype, err));
        FD_TRY(fd_gguf_append(to, &tensor->offset, sizeof tensor->offset, err));
    }
    return FD_OK;
}

fd_code fd_gguf_header(fd_gguf_writer *writer, void **data, size_t *size, fd_error *err) {
    fd_gguf_buffer header = {0};
    fd_code code = lay_out(writer, err);
    if (code == FD_OK) code = append_header(writer, &header, err);
    *data = header.data;
    *size = header.size;
    return code;
}

static fd_code fill_and_write(output *out, const fd_gguf_pending *pending, fd_error *err) {
    const fd_gguf_tensor *tensor = &pending->tensor;
    const int64_t row_bytes = fd_dtype_row_bytes(tensor->dtype, tensor->shape[0]);
    const int64_t n_row = (int64_t)tensor->bytes / row_bytes;
    int64_t piece = FD_GGUF_FILL_BYTES / row_bytes;
    if (piece < 1) piece = 1;
    if (piece > n_row) piece = n_row;
    void *buffer = malloc((size_t)(piece * row_bytes));
    if (!buffer) return fd_fail(err, FD_ERR_MEMORY, "out of memory for %" PRId64 " rows", piece);
    fd_code code = FD_OK;
    for (int64_t row = 0; row < n_row && code == FD_OK; row += piece) {
        int64_t n = n_row - row < piece ? n_row - row : piece;
        code = pending->fill(pending->user, row, n, buffer, err);
        if (code == FD_OK) code = write_bytes(out, buffer, (uint64_t)(n * row_bytes), err);
    }
    free(buffer);
    return code;
}

static fd_code write_all(fd_gguf_writer *writer, output *out, fd_error *err) {
    fd_gguf_buffer header = {0};
    fd_code code = append_header(writer, &header, err);
    if (code == FD_OK) code = write_bytes(out, header.data, header.size, err);
    free(header.data);
    FD_TRY(code);
    for (size_t i = 0; i < writer->n_tensor; i++) {
        const fd_gguf_pending *pending = &writer->tensor[i];
        FD_TRY(pad(out, writer->alignment, err));
        code = pending->fill ? fill_and_write(out, pending, err)
                             : write_bytes(out, pending->source, pending->tensor.bytes, err);
        if (code != FD_OK) return fd_error_prefix(err, "tensor %s", pending->tensor.name);
    }
    /* Readers in the field expect the last tensor padded too, and a file without tensors padded as well. */
    FD_TRY(pad(out, writer->alignment, err));
    if (fsync(out->file) != 0) return io_error(out, "sync", err);
    return FD_OK;
}

/* Creates PATH.tmp-PID-N; O_EXCL, so that no other file is touched. *name is the caller's to free. */
static fd_code create_beside(output *out, char **name, fd_error *err) {
    for (int attempt = 0; attempt < 100; attempt++) {
        if (asprintf(name, "%s.tmp-%ld-%d", out->path, (long)getpid(), attempt) < 0) {
            *name = NULL;
            return fd_fail(err, FD_ERR_MEMORY, "out of memory for a file name");
        }
        out->file = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (out->file >= 0) return FD_OK;
        int reason = errno;
        free(*name);
        *name = NULL;
        errno = reason;
        if (reason != EEXIST) break;
    }
    return io_error(out, "create a temporary file next to it", err);
}

/* The rename itself must reach the disk. Some file systems cannot sync a directory; then the data is synced all the
 * same. */
static void sync_directory_of(const char *path) {
    char *copy = strdup(path);
    if (!copy) return;
    char *slash = strrchr(copy, '/');
    if (slash) slash[slash == copy ? 1 : 0] = '\0';
    int directory = open(slash ? copy : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory >= 0) {
        (void)fsync(directory);
        close(directory);
    }
    free(copy);
}

fd_code fd_gguf_write(fd_gguf_writer *writer, const char *path, fd_error *err) {
    output out = {path, -1, 0};
    struct stat st;
    /* Renaming over /dev/null or a pipe would replace it. */
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return fd_fail(err, FD_ERR_IO, "%s: exists and is not a regular file", path);
    FD_TRY(lay_out(writer, err));
    char *temporary = NULL;
    FD_TRY(create_beside(&out, &temporary, err));
    fd_code code = write_all(writer, &out, err);
    if (close(out.file) != 0 && code == FD_OK) code = io_error(&out, "close", err); /* NFS reports a full disk here */
    if (code == FD_OK && rename(temporary, path) != 0) code = io_error(&out, "rename to it", err);
    if (code == FD_OK)
        sync_directory_of(path);
    else
        unlink(temporary);
    free(temporary);
    return code;
}

fd_code fd_gguf_write_and_open(fd_gguf_writer *writer, fd_gguf **out, fd_error *err) {
    char path[] = "/tmp/firstdiff-model-XXXXXX";
    int file = mkstemp(path);
    if (file < 0) return fd_fail(err, FD_ERR_IO, "%s: %s", path, strerror(errno));
    close(file);
    fd_code code = fd_gguf_write(writer, path, err);
    if (code == FD_OK) code = fd_gguf_open(path, out, err);
    unlink(path);
    fd_gguf_writer_free(writer);
    return code;
}

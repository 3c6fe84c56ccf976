/* Mapping a GGUF file. */
#include "base/file.h"
#include "model/gguf/internal.h"

fd_code fd_gguf_open(const char *path, fd_gguf **out, fd_error *err) {
    const void *data;
    size_t size;
    *out = NULL;
    FD_TRY(fd_file_map(path, "a GGUF file", &data, &size, err));
    if (fd_gguf_parse(data, size, out, err) != FD_OK) {
        fd_file_unmap(data, size);
        return fd_error_prefix(err, "%s", path);
    }
    (*out)->is_mapped = true;
    return FD_OK;
}

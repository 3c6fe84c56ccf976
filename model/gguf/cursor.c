#include "model/gguf/cursor.h"

#include <inttypes.h>
#include <string.h>

size_t fd_gguf_left(const fd_gguf_cursor *c) {
    return c->size - c->at;
}

const uint8_t *fd_gguf_take(fd_gguf_cursor *c, uint64_t n, const char *what, fd_error *err) {
    if (n > fd_gguf_left(c)) {
        fd_fail(err, FD_ERR_INPUT, "truncated at byte %zu: %s needs %" PRIu64 " bytes, the file has %zu left", c->at,
                what, n, fd_gguf_left(c));
        return NULL;
    }
    const uint8_t *bytes = c->data + c->at;
    c->at += (size_t)n;
    return bytes;
}

fd_code fd_gguf_take_u32(fd_gguf_cursor *c, const char *what, uint32_t *out, fd_error *err) {
    const uint8_t *bytes = fd_gguf_take(c, sizeof *out, what, err);
    if (!bytes) return FD_ERR_INPUT;
    memcpy(out, bytes, sizeof *out);
    return FD_OK;
}

fd_code fd_gguf_take_u64(fd_gguf_cursor *c, const char *what, uint64_t *out, fd_error *err) {
    const uint8_t *bytes = fd_gguf_take(c, sizeof *out, what, err);
    if (!bytes) return FD_ERR_INPUT;
    memcpy(out, bytes, sizeof *out);
    return FD_OK;
}

fd_code fd_gguf_take_string(fd_gguf_cursor *c, const char *what, fd_string *out, fd_error *err) {
    uint64_t size = 0;
    FD_TRY(fd_gguf_take_u64(c, what, &size, err));
    const uint8_t *bytes = fd_gguf_take(c, size, what, err);
    if (!bytes) return FD_ERR_INPUT;
    *out = (fd_string){(const char *)bytes, (size_t)size};
    return FD_OK;
}

fd_code fd_gguf_take_name(fd_gguf_cursor *c, const char *what, uint64_t limit, fd_string *out, fd_error *err) {
    size_t start = c->at;
    uint64_t size;
    FD_TRY(fd_gguf_take_u64(c, what, &size, err));
    if (size == 0 || size > limit)
        return fd_fail(err, FD_ERR_INPUT, "byte %zu: %s of %" PRIu64 " bytes, expected 1 to %" PRIu64, start, what,
                       size, limit);
    c->at = start;
    FD_TRY(fd_gguf_take_string(c, what, out, err));
    if (!fd_gguf_name_is_clean(*out))
        return fd_fail(err, FD_ERR_INPUT, "byte %zu: %s \"%s\" has control characters", start, what,
                       fd_gguf_show(*out).text);
    return FD_OK;
}

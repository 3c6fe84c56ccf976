/* Reads a file from front to back, and never past its end. */
#ifndef FD_MODEL_GGUF_CURSOR_H
#define FD_MODEL_GGUF_CURSOR_H

#include "model/gguf/internal.h"

typedef struct fd_gguf_cursor {
    const uint8_t *data;
    size_t size, at; /* at <= size, always */
} fd_gguf_cursor;

size_t fd_gguf_left(const fd_gguf_cursor *c);

/* The next n bytes; NULL, and a message naming `what`, when the file has fewer. */
const uint8_t *fd_gguf_take(fd_gguf_cursor *c, uint64_t n, const char *what, fd_error *err);
fd_code fd_gguf_take_u32(fd_gguf_cursor *c, const char *what, uint32_t *out, fd_error *err);
fd_code fd_gguf_take_u64(fd_gguf_cursor *c, const char *what, uint64_t *out, fd_error *err);
fd_code fd_gguf_take_string(fd_gguf_cursor *c, const char *what, fd_string *out, fd_error *err);
/* A name that the program will use as a C string and print. */
fd_code fd_gguf_take_name(fd_gguf_cursor *c, const char *what, uint64_t limit, fd_string *out, fd_error *err);

#endif

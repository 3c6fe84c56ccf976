/* Text that arrives in pieces of bytes, written as whole characters: a token may end in the middle of one. */
#ifndef FD_CLI_RUN_STREAM_H
#define FD_CLI_RUN_STREAM_H

#include <stddef.h>
#include <stdio.h>

typedef struct fd_cli_stream {
    FILE *to;
    char held[4]; /* the beginning of a character */
    size_t n_held;
} fd_cli_stream;

/* Writes what is complete, flushed, and keeps the rest. Bytes that are no UTF-8 are written as they are. */
void fd_cli_stream_put(fd_cli_stream *stream, const char *bytes, size_t size);
/* Writes what is kept. */
void fd_cli_stream_end(fd_cli_stream *stream);

/* Bytes at the end of `bytes` that begin a character whose others have not come: 0 to 3. */
size_t fd_utf8_unfinished(const char *bytes, size_t size);

#endif

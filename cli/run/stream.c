#include "cli/run/stream.h"

#include <string.h>

/* The size of a character by its first byte; 0 for one that begins none. */
static size_t character_size(unsigned char first) {
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first < 0xe0) return 2;
    if (first >= 0xe0 && first < 0xf0) return 3;
    if (first >= 0xf0 && first < 0xf5) return 4;
    return 0;
}

size_t fd_utf8_unfinished(const char *bytes, size_t size) {
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        unsigned char byte = (unsigned char)bytes[size - back];
        if ((byte & 0xc0) == 0x80) continue; /* inside one */
        return character_size(byte) > back ? back : 0;
    }
    return 0;
}

void fd_cli_stream_put(fd_cli_stream *s, const char *bytes, size_t size) {
    /* The character that was begun, completed by the next few bytes or broken by one. */
    while (s->n_held > 0 && size > 0) {
        s->held[s->n_held++] = *bytes++;
        size--;
        size_t open = fd_utf8_unfinished(s->held, s->n_held), whole = s->n_held - open;
        fwrite(s->held, 1, whole, s->to);
        memmove(s->held, s->held + whole, open);
        s->n_held = open;
    }
    size_t rest = fd_utf8_unfinished(bytes, size);
    fwrite(bytes, 1, size - rest, s->to);
    if (rest > 0) {
        memcpy(s->held, bytes + (size - rest), rest);
        s->n_held = rest;
    }
    fflush(s->to);
}

void fd_cli_stream_end(fd_cli_stream *s) {
    fwrite(s->held, 1, s->n_held, s->to);
    s->n_held = 0;
    fflush(s->to);
}

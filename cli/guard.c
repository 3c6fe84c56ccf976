#include "cli/guard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

typedef struct guard {
    int fd;
    size_t n_held; /* bytes of a character that the next write may end */
    char held[4];
} guard;

static bool write_all(int fd, const char *bytes, size_t size) {
    while (size > 0) {
        ssize_t n = write(fd, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        bytes += n;
        size -= (size_t)n;
    }
    return true;
}

/* Writes [size] without its hidden characters; *left: the bytes at the end that may begin a character. */
static bool write_shown(int fd, const char *bytes, size_t size, size_t *left) {
    const char *plain = bytes, *at = bytes, *end = bytes + size; /* plain: not written yet, and harmless up to `at` */
    *left = 0;
    while (at < end) {
        if ((unsigned char)*at >= 0x20 && (unsigned char)*at < 0x7f) {
            at++;
            continue;
        }
        fd_character c = fd_text_next(at, (size_t)(end - at));
        if (c.cut) break;
        if (!c.shown) {
            if (!write_all(fd, plain, (size_t)(at - plain)) || !write_all(fd, "?", 1)) return false;
            plain = at + c.n;
        }
        at += c.n;
    }
    *left = (size_t)(end - at);
    return write_all(fd, plain, (size_t)(at - plain));
}

/* The C library's idea of success is the size that it handed over. */
static ssize_t guarded_write(void *cookie, const char *bytes, size_t size) {
    guard *g = cookie;
    size_t done = 0, left;
    while (g->n_held > 0 && done < size) { /* the character that was begun, ended by the next bytes or broken by one */
        char joined[sizeof g->held + 1];
        memcpy(joined, g->held, g->n_held);
        joined[g->n_held] = bytes[done];
        fd_character c = fd_text_next(joined, g->n_held + 1);
        if (c.cut) {
            g->held[g->n_held++] = bytes[done++];
        } else if (c.n == g->n_held + 1) {
            done++;
            g->n_held = 0;
            if (!write_shown(g->fd, joined, c.n, &left)) return 0;
        } else { /* its first byte was no character's; those after it may be */
            if (!write_all(g->fd, "?", 1)) return 0;
            memmove(g->held, g->held + 1, --g->n_held);
        }
    }
    if (!write_shown(g->fd, bytes + done, size - done, &left)) return 0;
    if (left > 0) {
        memcpy(g->held, bytes + size - left, left);
        g->n_held = left;
    }
    return (ssize_t)size;
}

static FILE *open_guarded(int fd, int buffering) {
    static guard guards[2];
    guard *g = &guards[fd == STDERR_FILENO];
    *g = (guard){.fd = fd};
    FILE *stream = fopencookie(g, "w", (cookie_io_functions_t){.write = guarded_write});
    if (!stream) abort();
    setvbuf(stream, NULL, buffering, BUFSIZ);
    return stream;
}

static FILE *unguarded;

FILE *fd_cli_generated(void) {
    return isatty(STDOUT_FILENO) || !unguarded ? stdout : unguarded;
}

bool fd_cli_finish_streams(void) {
    fflush(stderr);
    bool ok = fflush(stdout) == 0 && !ferror(stdout);
    return unguarded ? fflush(unguarded) == 0 && !ferror(unguarded) && ok : ok;
}

void fd_cli_guard_streams(void) {
    unguarded = stdout;
    stdout = open_guarded(STDOUT_FILENO, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF);
    stderr = open_guarded(STDERR_FILENO, _IONBF);
}

static int descriptor_of(FILE *stream) {
    return stream == stderr ? STDERR_FILENO : STDOUT_FILENO;
}

void fd_cli_raw(FILE *stream, const char *bytes, size_t size) {
    fflush(stream);
    write_all(descriptor_of(stream), bytes, size);
}

void fd_cli_say_at_once(const char *text) {
    size_t left;
    write_shown(STDERR_FILENO, text, strlen(text), &left);
}

bool fd_cli_is_terminal(FILE *stream) {
    return isatty(descriptor_of(stream));
}

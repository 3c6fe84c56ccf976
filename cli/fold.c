#include "cli/fold.h"

#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/guard.h"

enum { INDENT = 14, NARROWEST = 40 }; /* where fd_line's text begins */

typedef struct fold {
    int width, column;
    bool whole; /* this line is not broken */
} fold;

/* Characters, one column each: bytes that do not continue one. */
static int columns_of(const char *text, size_t size) {
    int n = 0;
    for (size_t i = 0; i < size; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static size_t run_of(const char *text, size_t size, bool spaces) {
    size_t n = 0;
    while (n < size && text[n] != '\n' && (text[n] == ' ') == spaces) n++;
    return n;
}

/* A chunk ends where a line does, or where a colour does: the words of one do not wait for the next. */
static ssize_t folded_write(void *cookie, const char *bytes, size_t size) {
    static const char next[] = "  next "; /* a command, to be copied */
    fold *f = cookie;
    for (size_t i = 0; i < size;) {
        if (bytes[i] == '\n') {
            fputc(bytes[i++], stdout);
            f->column = 0;
            continue;
        }
        if (f->column == 0) f->whole = size - i >= sizeof next && memcmp(bytes + i, next, sizeof next - 1) == 0;
        size_t n_space = run_of(bytes + i, size - i, true), n = run_of(bytes + i + n_space, size - i - n_space, false);
        int word = columns_of(bytes + i + n_space, n);
        bool breaks = !f->whole && n_space > 0 && f->column > INDENT && f->column + (int)n_space + word > f->width;
        fprintf(stdout, breaks ? "\n%*s" : "%*s", breaks ? INDENT : (int)n_space, "");
        fwrite(bytes + i + n_space, 1, n, stdout);
        f->column = (breaks ? INDENT : f->column + (int)n_space) + word;
        i += n_space + n;
    }
    fflush(stdout);
    return (ssize_t)size;
}

FILE *fd_cli_fold(void) {
    static fold f;
    static char buffer[1 << 16];
    struct winsize size;
    if (!fd_cli_is_terminal(stdout) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < NARROWEST)
        return NULL;
    f = (fold){.width = size.ws_col};
    FILE *stream = fopencookie(&f, "w", (cookie_io_functions_t){.write = folded_write});
    if (stream) setvbuf(stream, buffer, _IOFBF, sizeof buffer);
    return stream;
}

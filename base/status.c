#include "base/status.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Names out of files end up in messages: a line break or an escape sequence in one must not. */
static void keep_one_line(char *message) {
    for (char *p = message; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
}

fd_code fd_fail(fd_error *err, fd_code code, const char *format, ...) {
    assert(code != FD_OK);
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    keep_one_line(err->message);
    err->code = code;
    return code;
}

fd_code fd_error_prefix(fd_error *err, const char *format, ...) {
    char message[sizeof err->message];
    memcpy(message, err->message, sizeof message);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    size_t at = n < 0 ? 0 : (size_t)n;
    for (const char *p = ": "; *p && at + 1 < sizeof err->message; p++) err->message[at++] = *p;
    for (const char *p = message; *p && at + 1 < sizeof err->message; p++) err->message[at++] = *p;
    if (at < sizeof err->message) err->message[at] = '\0';
    keep_one_line(err->message);
    return err->code;
}

int fd_exit_status(fd_code code) {
    switch (code) {
    case FD_OK:
    case FD_STOP: return 0;
    case FD_ERR_INCOMPLETE: return 3;
    case FD_ERR_INPUT:
    case FD_ERR_IO:
    case FD_ERR_MEMORY:
    case FD_ERR_DEVICE:
    case FD_ERR_UNSUPPORTED: return 2;
    }
    return 2;
}

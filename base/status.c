#include "base/status.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/text.h"

fd_code fd_fail(fd_error *err, fd_code code, const char *format, ...) {
    assert(code != FD_OK);
    char message[sizeof err->message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fd_text_one_line(message, err->message, sizeof err->message); /* names out of files end up in messages */
    err->code = code;
    return code;
}

fd_code fd_error_prefix(fd_error *err, const char *format, ...) {
    char prefix[sizeof err->message], message[2 * sizeof err->message + 2];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    snprintf(message, sizeof message, "%s: %s", prefix, err->message);
    fd_text_one_line(message, err->message, sizeof err->message);
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

#include "cli/temporary.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

fd_code fd_cli_temporary(char path[4096], fd_error *err) {
    const char *folder = getenv("TMPDIR");
    int n = snprintf(path, 4096, "%s/firstdiff-XXXXXX", folder && *folder ? folder : "/tmp");
    int fd = n < 4096 ? mkstemp(path) : -1;
    if (fd < 0) return fd_fail(err, FD_ERR_IO, "%s: no temporary file there: %s", path, strerror(errno));
    close(fd);
    return FD_OK;
}

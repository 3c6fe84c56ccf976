/* Where the files of a test lie. */
#ifndef FD_TESTS_SCRATCH_H
#define FD_TESTS_SCRATCH_H

#include <stdio.h>
#include <stdlib.h>

enum { SCRATCH_PATH = 64 };

/* `path` is NAME in $TMPDIR (scripts/test points it at memory), in /tmp where there is none or its name is long. */
static inline char *scratch_path(char path[SCRATCH_PATH], const char *name) {
    const char *folder = getenv("TMPDIR");
    if (!folder || !*folder || snprintf(path, SCRATCH_PATH, "%s/%s", folder, name) >= SCRATCH_PATH)
        snprintf(path, SCRATCH_PATH, "/tmp/%s", name);
    return path;
}

#endif

/* What test programs share. */
#ifndef FD_TESTS_COMMON_H
#define FD_TESTS_COMMON_H

#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

/* Ends the program where preparing a test fails. */
static inline void must(fd_code code, const fd_error *err) {
    if (code == FD_OK) return;
    fprintf(stderr, "a test cannot be prepared: %s\n", err->message);
    abort();
}

/* Keeps a block until the end of the test, which is a process of its own: it need not be freed, and is no leak. */
static inline void *kept(void *block) {
    static void **blocks;
    static size_t n;
    blocks = (void **)realloc(blocks, sizeof *blocks * (n + 1));
    if (!blocks) abort();
    return blocks[n++] = block;
}

#endif

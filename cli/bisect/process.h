/* Runs other programs and waits for them. */
#ifndef FD_CLI_BISECT_PROCESS_H
#define FD_CLI_BISECT_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct fd_process {
    const char *const *argv; /* NULL at the end; argv[0] is looked for on the PATH */
    const char *folder;      /* where it runs; NULL: here */
    const char *variable;    /* "NAME=value" in its environment; NULL: none */
    bool quiet;              /* what it prints is dropped, unless taken */
    char *output;            /* [size] receives standard output, cut at the end; NULL: not taken */
    size_t size;
} fd_process;

/* *status: its exit status, 128 and the signal when one ended it. FD_ERR_IO when it could not be started. */
fd_code fd_process_run(const fd_process *process, int *status, fd_error *err);

#endif

/* For the programs here that run a model. */
#ifndef FD_BENCH_RUN_H
#define FD_BENCH_RUN_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

/* Ends the program on a failure: its text behind the program's name, its exit status. */
static inline void must(fd_code code, const fd_error *err) {
    if (code == FD_OK) return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, err->message);
    exit(fd_exit_status(code));
}

/* Any tokens do: the time does not depend on them. */
static inline int32_t token_at(int i, int32_t n_vocab) {
    return (int32_t)((uint32_t)(i + 1) * 2654435761u % (uint32_t)n_vocab);
}

/* The last line of a table: what made it. */
static inline void show_command(int argc, char **argv) {
    printf("command:");
    for (int i = 0; i < argc; i++) printf(" %s", argv[i]);
    printf("\n");
}

#endif

/* Starts the program again with OpenMP's spinning limited (declared in cli.h). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* The arguments before main and argp rearrange them. */
static char **started_with;

void fd_cli_keep_arguments(int argc, char **argv) {
    started_with = malloc(((size_t)argc + 1) * sizeof *argv);
    if (started_with) memcpy(started_with, argv, ((size_t)argc + 1) * sizeof *argv);
}

void fd_cli_limit_openmp_spin(void) {
    if (!started_with || getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (setenv("GOMP_SPINCOUNT", "1000", 1) == 0)
        execv("/proc/self/exe", started_with); /* returns only on failure: go on */
}

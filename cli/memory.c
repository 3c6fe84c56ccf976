/* Keeps freed memory (declared in cli.h). */
#include <malloc.h>

#include "cli/cli.h"

void fd_cli_keep_freed_memory(void) {
#ifdef M_ARENA_MAX /* glibc */
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
    mallopt(M_ARENA_MAX, 1); /* one of a thread's own has 64 MiB at most */
#endif
}

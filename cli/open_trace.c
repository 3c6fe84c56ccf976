#include "cli/open_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dumpers/store/golden.h"

/* The number after the last # of a name that is not a file's; 0: none. */
static long prompt_number(const char *name, size_t *path_size) {
    const char *mark = strrchr(name, '#');
    char *end;
    if (!mark || access(name, F_OK) == 0) return 0;
    long prompt = strtol(mark + 1, &end, 10);
    *path_size = (size_t)(mark - name);
    return end != mark + 1 && !*end && prompt > 0 && prompt <= INT32_MAX ? prompt : 0;
}

fd_code fd_cli_open_trace(const char *name, size_t memory, fd_trace **out, fd_error *err) {
    size_t path_size = 0;
    char path[4096];
    struct stat there;
    fd_golden_size size;
    fd_golden *golden;
    if (stat(name, &there) == 0 && S_ISDIR(there.st_mode))
        return fd_fail(err, FD_ERR_INPUT,
                       "%s: a directory, expected a trace; for a dump: firstdiff check MODEL.gguf %s", name, name);
    long prompt = prompt_number(name, &path_size);
    if (!prompt || path_size >= sizeof path) return fd_trace_open_within(name, memory, out, err);
    snprintf(path, sizeof path, "%.*s", (int)path_size, name);
    FD_TRY(fd_golden_open(path, &golden, &size, err));
    fd_golden_close(golden);
    if (prompt > size.n_prompt)
        return fd_fail(err, FD_ERR_INPUT, "%s: prompt %ld, the golden has %d", path, prompt, size.n_prompt);
    FD_TRY(fd_golden_open_prompt(path, (int32_t)prompt - 1, out, err));
    if (fd_trace_set_path(*out, name)) return FD_OK;
    return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", name);
}

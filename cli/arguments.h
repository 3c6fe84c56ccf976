/* Arguments that several commands parse alike. What is wrong with one is a usage error of `state` (exit status 2). */
#ifndef FD_CLI_ARGUMENTS_H
#define FD_CLI_ARGUMENTS_H

#include <argp.h>
#include <stddef.h>
#include <stdint.h>

/* An argp parser's default case for the one argument MODEL.gguf: takes it, refuses a second and its absence (status
 * 2). */
error_t fd_cli_one_model(int key, char *arg, struct argp_state *state, const char **model);

/* "512M" to bytes: digits and nothing, K, M or G (powers of 1024), from `least` on; else a usage error (status 2). */
size_t fd_cli_bytes(const char *text, size_t least, struct argp_state *state);

/* An integer argument from `low` on; anything else is a usage error of `state` (exit status 2). */
int32_t fd_cli_integer(const char *arg, long low, struct argp_state *state);

/* --allow-missing GLOB, repeatable. */
enum { FD_CLI_MAX_GLOBS = 32 };
typedef struct fd_cli_globs {
    const char *items[FD_CLI_MAX_GLOBS];
    int32_t n;
} fd_cli_globs;
void fd_cli_add_glob(fd_cli_globs *globs, const char *glob, struct argp_state *state);

#endif

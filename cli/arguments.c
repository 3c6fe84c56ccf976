#include "cli/arguments.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

error_t fd_cli_one_model(int key, char *arg, struct argp_state *state, const char **model) {
    switch (key) {
    case ARGP_KEY_ARG:
        if (*model) argp_error(state, "one model expected, \"%s\" is one too many", arg);
        *model = arg;
        return 0;
    case ARGP_KEY_END:
        if (!*model) argp_error(state, "no model given");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

size_t fd_cli_bytes(const char *text, size_t least, struct argp_state *state) {
    static const char units[] = "KMG";
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (text[0] < '0' || text[0] > '9' || errno || (*end && (!unit || end[1])) || n > SIZE_MAX >> shift)
        argp_error(state, "\"%s\": expected a size in bytes, or one with K, M or G", text);
    if ((size_t)n << shift < least) argp_error(state, "\"%s\" is too small: expected at least %zuM", text, least >> 20);
    return (size_t)n << shift;
}

int32_t fd_cli_integer(const char *arg, long low, struct argp_state *state) {
    char *end;
    errno = 0;
    long value = strtol(arg, &end, 10);
    if (end == arg || *end || errno || value < low || value > INT32_MAX)
        argp_error(state, "\"%s\": expected an integer from %ld", arg, low);
    return (int32_t)value;
}

void fd_cli_add_glob(fd_cli_globs *globs, const char *glob, struct argp_state *state) {
    if (globs->n == FD_CLI_MAX_GLOBS) argp_error(state, "--allow-missing: at most %d globs", FD_CLI_MAX_GLOBS);
    globs->items[globs->n++] = glob;
}

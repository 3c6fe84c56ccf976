/* What a proposed map asks by size alone, as choices. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/propose/propose.h"

static fd_code add(fd_propose_choice **out, size_t *n, const fd_propose_choice *choice, fd_error *err) {
    fd_propose_choice *more = realloc(*out, (*n + 1) * sizeof *more);
    if (!more) return fd_fail(err, FD_ERR_MEMORY, "map auto: out of memory");
    *out = more;
    more[(*n)++] = *choice;
    return FD_OK;
}

/* The line without its newline, "ask SOURCE -> NODE | NODE OPERATION…", ends before its comment. */
static fd_code read_line(char *line, fd_propose_choice **out, size_t *n, fd_error *err) {
    fd_propose_choice choice = {0};
    char *arrow = strstr(line, " -> "), *nodes = arrow + 4, *ops = strrchr(nodes, '|'), *rest;
    *arrow = '\0';
    snprintf(choice.source, sizeof choice.source, "%.299s", line + strlen("ask "));
    ops = ops ? ops + 2 : nodes;
    ops += strcspn(ops, " ");
    snprintf(choice.ops, sizeof choice.ops, "%.95s", ops + strspn(ops, " "));
    *ops = '\0';
    for (char *node = strtok_r(nodes, "| ", &rest); node; node = strtok_r(NULL, "| ", &rest)) {
        snprintf(choice.node, sizeof choice.node, "%.95s", node);
        FD_TRY(add(out, n, &choice, err));
    }
    return FD_OK;
}

fd_code fd_propose_choices(const char *map, fd_propose_choice **out, size_t *n, fd_error *err) {
    char line[4096];
    *out = NULL;
    *n = 0;
    for (const char *at = map, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, "\n");
        snprintf(line, sizeof line, "%.*s", (int)(end - at), at);
        char *comment = strstr(line, "  # by size alone");
        if (strncmp(line, "ask ", 4) != 0 || !comment || !strstr(line, " -> ")) continue;
        *comment = '\0';
        FD_TRY(read_line(line, out, n, err));
    }
    return FD_OK;
}

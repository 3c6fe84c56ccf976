/* Lines of a proposed map. */
#ifndef FD_CLI_IMPORT_MAP_LINES_H
#define FD_CLI_IMPORT_MAP_LINES_H

#include <stdio.h>

/* The rules of `found`, a proposed map, behind the text of a built-in map (NULL: none), each for tensors alone that no rule above
 * it takes, and what it skips. What is undecided stays out. */
void fd_cli_put_rules(FILE *to, const char *builtin, size_t size, const char *found);

/* The next line from *at on that begins with `start`, without what it begins with; NULL: there is none. *at: after it. */
const char *fd_cli_next_line(const char **at, const char *start);

/* The lines of `text` that ask about one name, which no pattern must take: in `to` [size], half of it at most. Returns their bytes. */
size_t fd_cli_put_asked(const char *text, char *to, size_t size);

/* Leaves the questions of `taken` out whose names no rule of `taken` would take: values that follow from those rules may decide them. */
void fd_cli_drop_idle_questions(char *taken);

/* What was taken, and the rest: questions stand above the pattern that would take their names, and so does a rule of such a name. The
 * caller frees it; NULL: out of memory. */
char *fd_cli_join_lines(const char *taken, const char *rest);

#endif

/* Printing what a command found, and the options that say how; files that it writes are checked. */
#ifndef FD_CLI_OUTPUT_H
#define FD_CLI_OUTPUT_H

#include <jansson.h>

#include "cli/cli.h"
#include "compare/verdict.h"

typedef struct fd_cli_output {
    bool verbose;      /* text: more of it */
    bool json;         /* JSON instead of text on standard output */
    const char *html;  /* also an HTML page; NULL: none */
    const char *junit; /* also a JUnit file; NULL: none */
    const char *repro; /* also a folder with the op that is wrong, alone (cli/repro); NULL: none */
} fd_cli_output;

/* -v, --json, --junit and --html: argp children whose input is an fd_cli_output. The second, for commands that always
 * replay, has --repro too; repro is theirs to write. */
extern const struct argp fd_cli_output_argp, fd_cli_judged_output_argp;

/* Prints the verdict, writes the JUnit and HTML files, and returns the exit status: the verdict's, or 2 when
 * something could not be written. */
int fd_cli_print_verdict(const char *command, const fd_verdict *verdict, const fd_cli_output *output);

/* Opens `path` for writing; close checks that everything arrived. Errors name the path. */
fd_code fd_cli_output_open(const char *path, FILE **out, fd_error *err);
fd_code fd_cli_output_close(FILE *file, const char *path, fd_error *err);

/* FD_ERR_INPUT when `output` is one of the n files that the command reads, under whatever name: it would be
 * replaced. An output or inputs that are NULL, or not there, are fine. */
fd_code fd_cli_check_not_overwriting(const char *output, const char *const *inputs, size_t n, fd_error *err);
/* The same for the files of a verdict. */
fd_code fd_cli_check_reports_not_overwriting(const fd_cli_output *output, const char *const *inputs, size_t n,
                                             fd_error *err);

/* Prints `root` on standard output and gives it up. NULL is FD_ERR_MEMORY: Jansson gives it for text that is not
 * UTF-8, too. */
fd_code fd_cli_print_json(json_t *root, fd_error *err);

#endif

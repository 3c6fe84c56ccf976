/* firstdiff run --prompts-file: several prompts in one batch. */
#ifndef FD_CLI_RUN_MANY_H
#define FD_CLI_RUN_MANY_H

#include "cli/run/args.h"

/* Prints each prompt's text when all are through, in the file's order; returns the exit status. */
int fd_run_many(const fd_run_args *args);

#endif

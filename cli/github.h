/* GitHub's annotations and job summary: nothing happens where $GITHUB_ACTIONS is not "true". */
#ifndef FD_CLI_GITHUB_H
#define FD_CLI_GITHUB_H

#include "compare/verdict.h"

/* An error (failed) or a notice beside the run; lines of `message` after the first are kept. */
void fd_cli_github_annotate(bool failed, const char *title, const char *message);

/* Adds a headline and a block of text to $GITHUB_STEP_SUMMARY. A summary that cannot be written is no failure. */
void fd_cli_github_summarise(const char *title, const char *text);

/* Both, of a verdict. */
void fd_cli_github_verdict(const char *command, const fd_verdict *verdict);

#endif

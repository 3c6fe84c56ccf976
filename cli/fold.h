/* Lines that are wider than the terminal are broken at spaces and go on under what they say. Into a file or a pipe a line stays a line. */
#ifndef FD_CLI_FOLD_H
#define FD_CLI_FOLD_H

#include <stdio.h>

/* A stream that folds into stdout; fclose ends it. NULL where stdout is no terminal, or one that does not say how wide it is. */
FILE *fd_cli_fold(void);

#endif

/* Where the numbers of a recorded run stopped being numbers. */
#ifndef FD_CLI_RUN_FIRST_NAN_H
#define FD_CLI_RUN_FIRST_NAN_H

#include "base/status.h"

/* Adds to `err` the first tensor, in order of execution, that has a NaN or +inf in the trace at `path`; nothing when
 * the trace has no statistics, or no such tensor. */
void fd_cli_add_first_nan(const char *path, fd_error *err);

#endif

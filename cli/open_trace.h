/* Opens the traces that commands name. */
#ifndef FD_CLI_OPEN_TRACE_H
#define FD_CLI_OPEN_TRACE_H

#include "dumpers/store/trace.h"

/* TRACE.h5, or GOLDEN.h5#2 for the trace of a golden's second prompt. `memory` as in fd_trace_open_within. */
fd_code fd_cli_open_trace(const char *name, size_t memory, fd_trace **out, fd_error *err);

#endif

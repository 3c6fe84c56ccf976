/* What a trace that the program records says about itself. */
#ifndef FD_CLI_TRACE_INFO_H
#define FD_CLI_TRACE_INFO_H

#include "cli/cli.h"
#include "dumpers/store/trace.h"

void fd_cli_trace_info(const fd_cli_model *model, const fd_cli_exec *exec, fd_trace_info *out);

#endif

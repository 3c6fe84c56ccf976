/* Traces of the program's own runs. */
#ifndef FD_CLI_RECORD_H
#define FD_CLI_RECORD_H

#include "cli/cli.h"
#include "compare/diff/record.h"

/* What such a trace says about itself. */
void fd_cli_trace_info(const fd_cli_model *model, const fd_cli_exec *exec, fd_trace_info *out);

/* Runs exec->exec (`run` need not name it) and records it; `prompt`: its text, NULL when it was given as ids. */
fd_code fd_cli_record(const fd_cli_model *model, const fd_cli_exec *exec, const fd_trace_options *how,
                      const char *prompt, fd_recording *run, fd_error *err);

/* The same in a temporary file, which is gone when the trace is closed; how->path is not read. */
fd_code fd_cli_record_temporary(const fd_cli_model *model, const fd_cli_exec *exec, fd_trace_options how,
                                fd_recording *run, fd_trace **out, fd_error *err);

#endif

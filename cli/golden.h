/* The two halves of firstdiff golden. */
#ifndef FD_CLI_GOLDEN_H
#define FD_CLI_GOLDEN_H

#include "cli/output.h"

typedef struct fd_golden_args {
    bool check;
    const char *model, *file; /* file: PROMPTS of record, GOLDEN of check */
    const char *output, *backend, *fault; /* fault: of check alone; NULL: none */
    const char *numerics;                 /* of record; NULL in check, which takes the golden's */
    int32_t n_generate, n_thread;
    bool n_given;
    fd_cli_output report;
    int n_arg;
} fd_golden_args;

/* Each prints its result and returns the exit status. */
int fd_golden_record_command(const fd_golden_args *args, const fd_cli_model *model);
int fd_golden_check_command(const fd_golden_args *args, const fd_cli_model *model);

/* The executor of args->backend in numerics that fix every bit. */
fd_code fd_golden_executor(const fd_golden_args *args, const char *numerics, const fd_cli_model *model, int32_t n_ctx,
                           fd_cli_exec *out, fd_error *err);

#endif

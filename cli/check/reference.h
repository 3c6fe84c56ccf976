/* The reference of a check: the model itself, run on the engine's tokens in the engine's own forward calls. */
#ifndef FD_CLI_CHECK_REFERENCE_H
#define FD_CLI_CHECK_REFERENCE_H

#include "cli/cli.h"
#include "dumpers/store/trace.h"

typedef struct fd_check_reference {
    const fd_cli_model *model;
    const char *backend; /* "cpu", "gpu" */
    int32_t n_thread;
    const char *keep; /* a folder: the trace stays there as ref.h5; NULL: it is gone when it is closed */
} fd_check_reference;

/* steps [n_step], contiguous from 0; positions that no step claims come as single tokens. FD_ERR_INPUT when a token is
 * not in the vocabulary. */
fd_code fd_check_run_reference(const fd_check_reference *how, const int32_t *tokens, int32_t n_token,
                               const fd_trace_step *steps, int32_t n_step, fd_trace **out, fd_error *err);

#endif

/* Gets from "these two runs differ" to what `compare --model` says: both run again, recorded in temporary traces. */
#ifndef FD_CLI_COMPARE_EXPLAIN_RUNS_H
#define FD_CLI_COMPARE_EXPLAIN_RUNS_H

#include "cli/cli.h"
#include "compare/verdict.h"

typedef struct fd_cli_rerun_side {
    const fd_cli_exec *exec; /* runs again, from a reset; NULL: */
    const fd_trace *trace;   /* it was recorded */
    const char *label;
    const fd_trace_step *steps; /* [n_step] forward calls, contiguous from 0; unread with `trace` */
    int32_t n_step;
} fd_cli_rerun_side;

typedef struct fd_cli_rerun {
    const fd_cli_model *model;
    fd_cli_rerun_side side[2]; /* reference, candidate */
    const int32_t *tokens;     /* [n_token] */
    int32_t n_token;
    int32_t n_generate; /* as in fd_lockstep_options; needs an executor on the reference side */
    const char *const *allow_missing;
    int32_t n_allow_missing;
    const char *class_name; /* the candidate's; NULL: what its numerics say */
} fd_cli_rerun;

/* Replaces a verdict that found a difference in values by one with weights, replay and explanation. Two runs of one
 * contract run up to the step that differs, for there a bit is a bug; others run through, for there it may be rounding.
 * The verdict stays, with a note, when the traces would take more than 4 GiB or when the second runs agree. */
fd_code fd_cli_explain_runs(const fd_cli_rerun *rerun, fd_verdict *verdict, fd_error *err);

#endif

/* Two open traces to a verdict, for commands that compare. */
#ifndef FD_CLI_COMPARE_COMPARE_PAIR_H
#define FD_CLI_COMPARE_COMPARE_PAIR_H

#include "cli/arguments.h"
#include "cli/cli.h"
#include "compare/verdict.h"

typedef struct fd_cli_pair {
    const fd_cli_model *model; /* the model both ran: ops are replayed; NULL: bits and weights alone */
    const fd_trace *ref, *cand;
    const fd_cli_globs *allow_missing; /* besides what the candidate's engine cannot record */
    const char *class_name;            /* the candidate's; NULL: what its trace says, else inferred */
    const char *repro; /* a folder for the op that is found wrong, alone (cli/repro); NULL: not wanted */
    size_t memory;     /* as in fd_compare_options */
    bool replay_gpu;   /* as in fd_cli_replay */
} fd_cli_pair;

/* Shows its progress on stderr. *verdict is freed by the caller, also after a failure. */
fd_code fd_cli_compare_pair(const fd_cli_pair *pair, fd_verdict *verdict, fd_error *err);

#endif

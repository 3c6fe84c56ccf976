/* What the parts of firstdiff golden share. */
#ifndef FD_CLI_GOLDEN_GOLDEN_H
#define FD_CLI_GOLDEN_GOLDEN_H

#include "cli/output.h"
#include "cli/prompt_list.h"
#include "dumpers/store/golden.h"

typedef struct fd_golden_args {
    bool check;                           /* else record */
    bool update, yes;                     /* check, and record anew what differs when `yes` */
    const char *model, *file;             /* file: PROMPTS of record, GOLDEN of check */
    const char *output, *backend, *fault; /* fault: of check only; NULL: none */
    const char
        *numerics; /* of record: exact or q8act; of check: NULL, the golden's, or others, of which only the logits
                             are compared, within `limit` */
    double limit;  /* NMSE of a position's logits; negative: as suits the numerics */
    int32_t n_generate, n_thread;
    bool n_given;
    fd_cli_output report;
    int n_arg;
} fd_golden_args;

/* Each prints its result and returns the exit status. */
int fd_golden_record_command(const fd_golden_args *args, const fd_cli_model *model);
int fd_golden_check_command(const fd_golden_args *args, const fd_cli_model *model);
int fd_golden_update_command(const fd_golden_args *args, const fd_cli_model *model);
/* Runs these prompts, writes the golden args->output and says so. */
fd_code fd_golden_record_list(const fd_golden_args *args, const fd_cli_model *model, const fd_cli_prompts *list,
                              fd_error *err);

/* ---- one prompt of a check ---- */

typedef struct fd_golden_outcome {
    char name[128]; /* "prompt 3: To be, or not" */
    bool failed;
    char message[1024]; /* what differs, when it failed */
    json_t *json;       /* owned until it stands in the report */
} fd_golden_outcome;

/* Sums over the prompts, for the line that says that all passed. */
typedef struct fd_golden_totals {
    int64_t n_pos, n_same, n_flip;
    double worst;
} fd_golden_totals;

/* Run the prompt (from 0) again and fill message, failed and json. Exact: every bit. Near: logits within `limit`. */
fd_code fd_golden_check_exact(fd_exec *exec, const fd_trace *golden, int32_t prompt, fd_golden_outcome *out,
                              fd_golden_totals *totals, fd_error *err);
fd_code fd_golden_check_logits(fd_exec *exec, const fd_trace *golden, int32_t prompt, double limit,
                               fd_golden_outcome *out, fd_golden_totals *totals, fd_error *err);

#endif

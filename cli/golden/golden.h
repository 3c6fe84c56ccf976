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
    double limit;  /* NMSE of a position's logits; negative: as was measured, or as suits the numerics */
    const char *tolerances; /* of record: classes to measure, "f16,q8" or "all"; NULL: none */
    const char *run, *map;  /* of check: what another engine left, instead of a run of our own; NULL: none */
    int32_t n_generate, n_thread;
    bool n_given;
    fd_cli_output report;
    int n_arg;
} fd_golden_args;

/* Each prints its result and returns the exit status. */
int fd_golden_record_command(const fd_golden_args *args, const fd_cli_model *model);
int fd_golden_check_command(const fd_golden_args *args, const fd_cli_model *model);
int fd_golden_update_command(const fd_golden_args *args, const fd_cli_model *model);

/* ---- tolerances (measure.c) ---- */

/* The classes of a list like "f16,q8", "f16 q8" or "all" into `out`. FD_ERR_INPUT names an unknown one. NULL:
 * none. */
fd_code fd_golden_tolerances_parse(const char *list, fd_golden_tolerances *out, fd_error *err);
/* Runs a prompt (tokens [n_pos], of which n_token in the first call) in `exact` and in every class, and keeps how far
 * the logits of a class were from the exact ones at most. */
typedef struct fd_golden_measuring {
    const fd_cli_model *model;
    const fd_cli_exec *exact;
    int32_t *tokens, n_token, n_pos;
    int32_t n_thread;
} fd_golden_measuring;
fd_code fd_golden_measure(const fd_golden_measuring *how, fd_golden_tolerances *out, fd_error *err);

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

/* How far logits may be from the golden's. */
typedef struct fd_golden_limit {
    double nmse;
    char class_[32]; /* that it was measured for; "": given or fixed */
    int32_t n_run;   /* measured runs of the prompt */
    bool given;
} fd_golden_limit;
/* How it came about: "8 times the farthest of 4 f16 runs a prompt, measured when recorded"; returns `to`. */
const char *fd_golden_limit_text(const fd_golden_limit *limit, char to[96]);

/* Sums over the prompts, for the line that says that all passed. */
typedef struct fd_golden_totals {
    int64_t n_pos, n_same, n_flip;
    double worst;          /* NMSE, of the prompt that is nearest to its limit */
    fd_golden_limit limit; /* that prompt's */
} fd_golden_totals;

/* Run the prompt (from 0) again and fill message, failed and json. Exact: every bit. Near: logits within `limit`. */
fd_code fd_golden_check_exact(fd_exec *exec, const fd_trace *golden, int32_t prompt, fd_golden_outcome *out,
                              fd_golden_totals *totals, fd_error *err);
fd_code fd_golden_check_logits(fd_exec *exec, const fd_trace *golden, int32_t prompt, const fd_golden_limit *limit,
                               fd_golden_outcome *out, fd_golden_totals *totals, fd_error *err);
/* Another engine's run of that prompt. FD_ERR_INCOMPLETE: none of its logits could be compared, or not all. */
fd_code fd_golden_check_run(const fd_trace *run, const fd_trace *golden, int32_t prompt, const fd_golden_limit *limit,
                            fd_golden_outcome *out, fd_golden_totals *totals, fd_error *err);

#endif

/* The two halves of firstdiff golden. */
#ifndef FD_CLI_GOLDEN_GOLDEN_H
#define FD_CLI_GOLDEN_GOLDEN_H

#include "cli/output.h"
#include "dumpers/store/golden.h"

typedef struct fd_golden_args {
    bool check;
    const char *model, *file; /* file: PROMPTS of record, GOLDEN of check */
    const char *output, *backend, *fault; /* fault: of check alone; NULL: none */
    const char *numerics; /* of record: exact or q8act; of check: NULL, the golden's, or others, whose logits alone are
                             compared, within `limit` */
    double limit;         /* NMSE of a position's logits; negative: as suits the numerics */
    int32_t n_generate, n_thread;
    bool n_given;
    fd_cli_output report;
    int n_arg;
} fd_golden_args;

/* Each prints its result and returns the exit status. */
int fd_golden_record_command(const fd_golden_args *args, const fd_cli_model *model);
int fd_golden_check_command(const fd_golden_args *args, const fd_cli_model *model);

/* Every prompt in numerics that are not the golden's: prints, and counts those beyond the limit. */
fd_code fd_golden_check_all_near(const fd_golden_args *args, const fd_golden *golden, fd_exec *exec,
                                 int32_t *n_failed, fd_error *err);

/* ---- golden_failures.c ---- */
/* "prompt 3: To be, or not" for reports. */
void fd_golden_prompt_name(const fd_golden_prompt *prompt, int32_t i, char *to, size_t size);
/* What is wrong with a prompt, in words; false, and `message` as it was, when nothing is. */
typedef bool (*fd_golden_failure_fn)(const void *results, int32_t prompt, char *message, size_t size);
/* The prompts that diverged and their number; nothing when none did. */
void fd_golden_print_failures(const fd_golden *golden, fd_golden_failure_fn failure, const void *results);
fd_code fd_golden_write_junit(const char *path, const fd_golden *golden, fd_golden_failure_fn failure,
                              const void *results, fd_error *err);

/* The executor of args->backend. */
fd_code fd_golden_executor(const fd_golden_args *args, const char *numerics, const fd_cli_model *model, int32_t n_ctx,
                           fd_cli_exec *out, fd_error *err);

#endif

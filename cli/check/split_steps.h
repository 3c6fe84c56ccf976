/* How the tokens of a dump were shared out over its steps, where no shape says it: one row of each step (logits, or any tensor, of the
 * last token alone) lies at the position whose row in the reference it is near to. */
#ifndef FD_CLI_CHECK_SPLIT_STEPS_H
#define FD_CLI_CHECK_SPLIT_STEPS_H

#include "dumpers/import/import.h"

typedef struct fd_step_split {
    int32_t *sizes; /* [plan->n_step] of the caller: tokens of each step */
    bool better;    /* more rows fit than with the plan's own */
    bool sure;      /* some row fits */
    char name[256]; /* of the tensor whose rows say it */
} fd_step_split;

/* For a plan that guesses its steps. `ref` has the plan's tokens. FD_ERR_MEMORY; what cannot be read fits nowhere. */
fd_code fd_cli_split_steps(const fd_import_plan *plan, const fd_trace *ref, fd_step_split *out, fd_error *err);

#endif

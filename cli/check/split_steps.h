/* How the tokens of a dump were shared out over its steps, where no shape says it: logits of each step's last token alone lie at
 * the positions whose logits in the reference they are near to. */
#ifndef FD_CLI_CHECK_SPLIT_STEPS_H
#define FD_CLI_CHECK_SPLIT_STEPS_H

#include "dumpers/import/import.h"

/* The name of such logits, one row in each step, where `plan` guesses its steps; NULL. */
const char *fd_cli_last_logits(const fd_import_plan *plan);

/* `name`: of the logits. sizes [plan->n_step] receives tokens of each step; *better: more rows fit than with the plan's own, *sure: some row fits. `ref` has
 * the plan's tokens. FD_ERR_MEMORY; what cannot be read fits nowhere. */
fd_code fd_cli_split_steps(const fd_import_plan *plan, const char *name, const fd_trace *ref, int32_t *sizes,
                           bool *better, bool *sure, fd_error *err);

#endif

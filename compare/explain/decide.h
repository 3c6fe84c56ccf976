/* When all was tried: is what is left one explanation, and if not, what would tell those apart? */
#ifndef FD_COMPARE_EXPLAIN_DECIDE_H
#define FD_COMPARE_EXPLAIN_DECIDE_H

#include "compare/explain/trial.h"

/* Into trial->out: what is named, what remains, and why nothing is. */
fd_code fd_decide(fd_trial *trial, fd_error *err);

#endif

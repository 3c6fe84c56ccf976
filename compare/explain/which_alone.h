/* Of Q, K and V, which a fault changes alike, some may be right: the name says of which it is true. */
#ifndef FD_COMPARE_EXPLAIN_WHICH_ALONE_H
#define FD_COMPARE_EXPLAIN_WHICH_ALONE_H

#include "compare/explain/trial.h"

/* Appends " (attn_v alone)" to the summary where others that the fault changes were recorded and are as they should be. */
fd_code fd_say_which_alone(fd_trial *trial, fd_explain_fit *fit, fd_error *err);

#endif

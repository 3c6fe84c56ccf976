/* The replay of `firstdiff compare --model`: hands compare/ the op function, which it must not include itself. */
#ifndef FD_CLI_COMPARE_REPLAY_H
#define FD_CLI_COMPARE_REPLAY_H

#include "cli/cli.h"
#include "compare/verdict.h"

/* Judges what fd_compare_traces found (compare/compare_model.h). `class_name` NULL: what the candidate's trace says,
 * else inferred; FD_ERR_INPUT for an unknown one. Shows its progress on stderr. */
fd_code fd_cli_replay(const fd_cli_model *model, const fd_trace *ref, const fd_trace *cand, const char *class_name,
                      fd_verdict *verdict, fd_error *err);

#endif

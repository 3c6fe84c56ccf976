/* The replay of `firstdiff compare --model`: hands compare/ the op function and the device, which it must not include
 * itself. */
#ifndef FD_CLI_COMPARE_REPLAY_H
#define FD_CLI_COMPARE_REPLAY_H

#include "cli/cli.h"
#include "compare/verdict.h"

/* The value of --replay, cpu or gpu; anything else is an argp_error. */
bool fd_cli_is_replay_gpu(const char *arg, struct argp_state *state);
/* Before anything long begins: FD_ERR_DEVICE, FD_ERR_UNSUPPORTED, where a replay on the GPU is not possible. */
fd_code fd_cli_check_replay(bool on_gpu, fd_error *err);

/* Judges what fd_compare_traces found (compare/compare_model.h). `class_name` NULL: what the candidate's trace says,
 * else inferred; FD_ERR_INPUT for an unknown one. `on_gpu`: large products of replay are a GPU's (engine/products/), the
 * verdict is the same. Shows its progress on stderr. */
fd_code fd_cli_replay(const fd_cli_model *model, const fd_trace *ref, const fd_trace *cand, const char *class_name,
                      bool on_gpu, fd_verdict *verdict, fd_error *err);

#endif

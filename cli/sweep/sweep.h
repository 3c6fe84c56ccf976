/* What firstdiff sweep runs: the same tokens, split into forward calls in different configurations, each in lockstep
 * with the trace of one baseline, tensor by tensor. */
#ifndef FD_CLI_SWEEP_SWEEP_H
#define FD_CLI_SWEEP_SWEEP_H

#include "cli/cli.h"
#include "compare/diff/golden.h"

/* How the tokens are split: `first` in one call, then `batch` at a time; both ≥ 1, cut at the last token. */
typedef struct fd_sweep_split {
    int32_t first, batch;
    bool unobserved; /* no observer: what a user's run does. Only logits can be compared: the last row of each call */
    bool all_logits; /* of an unobserved run: every row */
} fd_sweep_split;

/* The forward calls of a split: malloc'ed [*n_step]; NULL: out of memory. */
fd_trace_step *fd_sweep_steps(const fd_sweep_split *split, int32_t n_pos, int32_t *n_step);

typedef struct fd_sweep_result {
    bool diverged;
    char node[64]; /* the first in order of execution; "logits" when unobserved */
    int32_t step, pos;
    int64_t n_compared; /* tensors (a node at a position) or rows of logits; up to the divergence */
    double seconds;
} fd_sweep_result;

/* Resets the executor and runs the split until it diverges. FD_ERR_INCOMPLETE: it ended with something not compared.
 * Bits are compared, with any NaN equal to any other. */
fd_code fd_sweep_run(fd_exec *exec, const fd_trace *baseline, const fd_sweep_split *split, fd_sweep_result *out,
                     fd_error *err);

/* ---- the command ---- */

typedef struct fd_sweep_args {
    const char *model, *backend, *numerics, *fault;
    fd_cli_prompt prompt;
    int32_t n_generate;
    bool json;
} fd_sweep_args;

/* One line of the report. Those with the same executor (`on_cpu`, `n_thread`) stand together: each is opened once. */
typedef struct fd_sweep_configuration {
    char name[64];
    fd_sweep_split split;
    int32_t n_thread; /* 0: all cores */
    bool on_cpu;      /* cpu:exact, compared with a GPU's baseline */
    fd_sweep_result result;
} fd_sweep_configuration;

enum { FD_SWEEP_MAX_CONFIGURATIONS = 24 };

typedef struct fd_sweep {
    const fd_sweep_args *args;
    fd_cli_model model;
    int32_t *tokens;
    int32_t n_prompt, n_pos;
    fd_trace *baseline;
    fd_sweep_configuration configurations[FD_SWEEP_MAX_CONFIGURATIONS];
    int32_t n_configuration, n_diverged;
    double seconds;
    const fd_sweep_configuration *explained; /* the first that diverged and could be recorded: */
    fd_verdict verdict;
} fd_sweep;

/* ---- report.c ---- */
void fd_sweep_print_text(const fd_sweep *sweep);
fd_code fd_sweep_print_json(const fd_sweep *sweep, fd_error *err);

#endif

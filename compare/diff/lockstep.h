/* Two runs of one model, tensor by tensor: each node's output is compared before anything reads it, and both runs
 * stop at the first one that differs. A recorded trace can take the place of either run.
 *
 * Each executor runs in its own thread, but only one of the two computes at a time: the other waits in its observer, so
 * that both can use every core. */
#ifndef FD_COMPARE_DIFF_LOCKSTEP_H
#define FD_COMPARE_DIFF_LOCKSTEP_H

#include "compare/verdict.h"

typedef struct fd_lockstep_side {
    fd_exec *exec;         /* borrowed, and reset first when the other side is a trace; its observer is replaced, and
                              removed at the end */
    const fd_trace *trace; /* exactly one of exec and trace is not NULL */
    const char *label;     /* for the report: "cpu:exact", a path */
    const char *fault;     /* "" for none */
} fd_lockstep_side;

/* Chooses the token after history [n_history] from the reference's logits (the executor's when the other side is a
 * trace). */
typedef fd_code (*fd_choose_fn)(void *user, const float *logits, int32_t n_vocab, const int32_t *history,
                                int32_t n_history, int32_t *token, fd_error *err);

/* Greedy: the highest logit, the lowest id of a tie. A NaN among the logits is FD_ERR_INPUT that names its id. */
fd_code fd_choose_greedy(void *user, const float *logits, int32_t n_vocab, const int32_t *history, int32_t n_history,
                         int32_t *token, fd_error *err);

/* The logits of a forward call: n_row rows, the last of which is of position pos0 + n_row - 1. Ends the run with
 * FD_STOP. */
typedef struct fd_step_logits {
    int32_t step, pos0, n_row;
    const float *logits; /* [n_row, n_vocab] */
} fd_step_logits;
typedef fd_code (*fd_logits_fn)(void *user, const fd_step_logits *logits, fd_error *err);

typedef struct fd_lockstep_options {
    fd_lockstep_side ref, cand; /* at most one is a trace: two traces are fd_compare_traces' job */
    const int32_t *tokens;      /* [n_token] fed to both as they are; ≥ 1 */
    int32_t n_token;
    const fd_trace_step *steps; /* [n_step] how those tokens are split into forward calls, contiguous from position 0;
                                   NULL: one prefill of all */
    int32_t n_step;
    int32_t n_generate; /* tokens to generate after them; the last one is not fed. 0 when a side is a trace */
    const char *const *allow_missing; /* [n_allow_missing] globs over node names that need not be on both sides */
    int32_t n_allow_missing;
    fd_choose_fn choose; /* NULL: greedy */
    void *choose_user;
    void (*progress)(void *user, int64_t done, int64_t total); /* in positions; NULL: not called */
    void *progress_user;

    /* For a run compared with a trace: */
    bool fingerprints_only; /* a divergence comes without values; executors need not bring elements to the host */
    bool unobserved;        /* no observer, as in a user's run: nothing but on_logits looks at it */
    fd_logits_fn
        on_logits; /* after each forward call; the one that diverges is run to its end first. NULL: not called */
    void *logits_user;
    bool all_logits; /* on_logits gets every position's row, not the last alone */
} fd_lockstep_options;

/* Runs both sides from position 0. The verdict's counts after a divergence are unknown (after_known is false): the runs
 * were stopped. Fails when an executor fails, a trace cannot be read or the two graphs are not of one model; *out is to
 * be freed with fd_verdict_free in every case. */
fd_code fd_lockstep_run(const fd_lockstep_options *options, fd_verdict *out, fd_error *err);

#endif

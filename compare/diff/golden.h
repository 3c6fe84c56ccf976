/* Goldens: traces of exact runs, with the fingerprint of every tensor and the elements of the logits, that later
 * runs are compared with. Tolerance zero; golden_near.h has the check of numerics that are not the golden's. */
#ifndef FD_COMPARE_DIFF_GOLDEN_H
#define FD_COMPARE_DIFF_GOLDEN_H

#include "compare/diff/lockstep.h"

/* Whether the golden can be checked against this model at all: another model's hash or vocabulary is FD_ERR_INPUT;
 * another contract, numerics or list of nodes is FD_ERR_INCOMPLETE, because nothing could be compared. */
fd_code fd_golden_usable(const fd_trace *golden, const fd_graph *graph, const char *model_hash, fd_error *err);

/* The recorded logits of a position, rounded to binary32: out [n_vocab]; NaN: this one was not kept (fd_golden_thin). */
fd_code fd_golden_logits(const fd_trace *golden, int32_t pos, float *out, fd_error *err);
/* The highest logit, the lowest id of a tie. NaN never wins; NaN alone gives 0. */
int32_t fd_golden_best(const float *logits, int32_t n_vocab);
/* The greedy token after a position: the one that was fed next; after the last position the best of its recorded logits
 * [n_vocab]. */
int32_t fd_golden_next_token(const fd_trace *golden, int32_t pos, const float *recorded, int32_t n_vocab);

/* Runs the golden's tokens again, split into `steps`, in lockstep with it; NULL: in its own steps. Unobserved, nothing
 * but on_logits compares. */
typedef struct fd_golden_rerun {
    fd_exec *exec;
    const fd_trace *golden;
    const fd_trace_step *steps; /* [n_step] */
    int32_t n_step;
    bool unobserved, all_logits;
    fd_logits_fn on_logits; /* NULL: not called */
    void *user;
} fd_golden_rerun;
fd_code fd_golden_run_again(const fd_golden_rerun *rerun, fd_verdict *out, fd_error *err);

typedef enum fd_golden_kind { FD_GOLDEN_SAME, FD_GOLDEN_TENSOR, FD_GOLDEN_LOGITS, FD_GOLDEN_CHOICE } fd_golden_kind;

typedef struct fd_golden_result { /* of one prompt */
    fd_golden_kind kind;          /* of the first difference */
    int64_t n_same;               /* tensors (node and step) identical before it; all of them when there is none */
    char node[64];                /* FD_GOLDEN_TENSOR; "logits" for FD_GOLDEN_LOGITS */
    int32_t step, pos;
    bool logits_differ; /* in the step of the first difference: the first that does */
    int32_t logit_pos, logit_id;
    float logit_golden, logit_now;
    int64_t n_logit_differ; /* of those that the golden keeps */
    bool choice_differs;    /* the greedy token after that step */
    int32_t choice_golden, choice_now;
} fd_golden_result;

/* Runs the golden's tokens again in its own steps, in lockstep with it, and stops after the step in which something
 * differs. Fails when the executor fails, and with FD_ERR_INCOMPLETE when something could not be compared. */
fd_code fd_golden_check(fd_exec *exec, const fd_trace *golden, fd_golden_result *out, fd_error *err);

#endif

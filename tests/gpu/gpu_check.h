/* What the checks of fd_gpu_check share: the tokens, the reference's logits and those found, a run, a comparison. */
#ifndef FD_TESTS_GPU_CHECK_H
#define FD_TESTS_GPU_CHECK_H

#include "exec/exec.h"

typedef struct check {
    const fd_graph *graph;
    int32_t n_prefill, n_token; /* with the decoded ones */
    int32_t *tokens;            /* [n_token] */
    float *logits;              /* of the reference, [n_token, n_vocab] */
    float *found;               /* likewise */
    bool quiet;                 /* prints what fails alone */
    int32_t n_failed;
    double started; /* the check under way, by now() */
} check;

/* Seconds of a clock that only rises. */
double now(void);

/* Room for n_token tokens and their logits, and the tokens; ends the program where there is none. */
void open_check(check *c);
void close_check(check *c);

/* Prints a line and counts what does not hold. */
void verdict(check *c, const char *what, bool holds);

/* n tokens from pos0 on; their logits to those rows of `logits` (NULL: none). */
fd_code forward(fd_exec *exec, const check *c, int32_t pos0, int32_t n, float *logits, fd_error *err);

/* All tokens from position 0 on, `first` of them at once, then `then`; logits [n_token, n_vocab]. */
void run(fd_exec *exec, check *c, int32_t first, int32_t then, float *logits);

/* logits and found, bit by bit (every NaN is the same NaN); prints how many differ, and the first. */
bool same_logits(const check *c);

/* Every node of a prefill and of each decode step, both backends observed; the reference's logits stay in c->logits.
 * `also` sees the reference's tensors too; NULL: no one else does. */
void check_lockstep(check *c, const char *how, fd_exec *cpu, fd_exec *gpu, const fd_observer *also);
/* Without an observer: fused, twice, the same tokens in other batches, the last row alone: c->logits. */
void check_untraced(check *c, fd_exec *gpu);

#endif

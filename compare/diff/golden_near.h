/* Numerics that are not exact against an exact golden: no bit is expected to match, so only the logits are compared,
 * within a tolerance. */
#ifndef FD_COMPARE_DIFF_GOLDEN_NEAR_H
#define FD_COMPARE_DIFF_GOLDEN_NEAR_H

#include "dumpers/store/trace.h"

/* Binary16 factors leave the bundled models and llama.cpp's test models below 3e-6; a wrong op goes far beyond. */
#define FD_GOLDEN_NEAR_LIMIT 1e-4
/* int8 activations: each product's input is off by at most 1.7e-4 (tests/gpu/fast_check.h), their logits by 6.8e-5. */
#define FD_GOLDEN_NEAR_LIMIT_INT8 1e-3

/* The limit for what an executor calls its numerics. */
double fd_golden_near_limit(const char *numerics);

typedef struct fd_golden_near { /* of one prompt */
    bool near;                  /* at every position; false where a logit is NaN */
    double worst;               /* largest Σ(now − then)² / Σ then² of a position */
    int32_t pos;                /* where it is; with near false, the first position beyond the limit */
    int32_t n_flip;             /* greedy tokens that differ from the golden's */
} fd_golden_near;

/* Runs the golden's tokens again in its own steps, without an observer. Fails only when the executor fails or the
 * golden cannot be read. */
fd_code fd_golden_check_near(fd_exec *exec, const fd_trace *golden, double limit, fd_golden_near *out, fd_error *err);

#endif

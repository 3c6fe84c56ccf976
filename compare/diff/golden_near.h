/* Numerics that are not exact against an exact golden: no bit is expected to match, so only the logits are compared,
 * within a tolerance: the distance that sound runs of these numerics had when the golden was recorded, times a factor;
 * where that was not measured, a limit that is wide enough for all. */
#ifndef FD_COMPARE_DIFF_GOLDEN_NEAR_H
#define FD_COMPARE_DIFF_GOLDEN_NEAR_H

#include "dumpers/store/golden.h"

/* Binary16 factors leave the bundled models and llama.cpp's test models below 3e-6; a wrong op goes far beyond. */
#define FD_GOLDEN_NEAR_LIMIT 1e-4
/* int8 activations: each product's input is off by at most 1.7e-4 (tests/gpu/fast_check.h), their logits by 6.8e-5. */
#define FD_GOLDEN_NEAR_LIMIT_INT8 1e-3

/* The limit for what an executor calls its numerics, where nothing was measured. */
double fd_golden_near_limit(const char *numerics);

/* A limit is so many times the largest distance of the measured runs. Of twelve orders of summation in eight classes, the
 * bundled models and five prompts, one was up to 2.8 times as far off as the farthest of any four others. */
#define FD_GOLDEN_MEASURED_FACTOR 8.0
/* The limit that was measured for the class that `numerics` names ("f16", "emulate-f16:7", "fast"); class_ receives its name in
 * `measured`. Negative: none was. */
double fd_golden_measured_limit(const fd_golden_tolerances *measured, const char *numerics, char class_[32]);

typedef struct fd_golden_near { /* of one prompt */
    bool near;                  /* at every position; false where a logit is NaN */
    double worst;   /* largest Σ(now − then)² / Σ then² of a position, over the logits that the golden keeps */
    int32_t pos;    /* where it is; with near false, the first position beyond the limit */
    int32_t n_flip; /* greedy tokens that differ from the golden's */
    int32_t n_pos;  /* positions compared */
    int32_t parted; /* a trace: the first position with another token than the golden's; -1: none */
} fd_golden_near;

/* Runs the golden's tokens again in its own steps, without an observer. Fails only when the executor fails or the
 * golden cannot be read. */
fd_code fd_golden_check_near(fd_exec *exec, const fd_trace *golden, double limit, fd_golden_near *out, fd_error *err);
/* The same for the recorded logits of another engine's run, as far as it was fed the golden's tokens. */
fd_code fd_golden_check_trace(const fd_trace *run, const fd_trace *golden, double limit, fd_golden_near *out,
                              fd_error *err);

#endif

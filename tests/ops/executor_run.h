/* Runs of a random model (random_model.h) by the CPU executor. */
#ifndef FD_TESTS_OPS_EXECUTOR_RUN_H
#define FD_TESTS_OPS_EXECUTOR_RUN_H

#include "reference_cpu/reference.h"

enum { RANDOM_TOKENS = 200, RANDOM_VOCAB = 101 };

extern int32_t tokens[RANDOM_TOKENS]; /* what is fed: filled by fill_tokens, an .init of tests */
void fill_tokens(void);

/* With room for RANDOM_TOKENS positions unless the options say otherwise. */
fd_exec *make_exec(const fd_graph *graph, fd_reference_options options);

/* From position 0: logits of all n positions, in batches of `batch` tokens. Live until the end of the test. */
float *run(fd_exec *exec, int32_t n, int32_t batch);
float *run_new(const fd_graph *graph, fd_reference_options options, int32_t n, int32_t batch);

/* Every bit of n logits, none of which may be NaN or Inf: such a case shows nothing. */
void expect_same(float *a, float *b, int64_t n, const char *what);

#endif

/* Runs of a bundled model on an emulated class, and how far two runs are apart. Everything here aborts with a message
 * on failure: a test that cannot run has failed. What it returns lives until the end of the test. */
#ifndef FD_TESTS_EMULATE_EMULATE_CASE_H
#define FD_TESTS_EMULATE_EMULATE_CASE_H

#include "emulate/emulate.h"

enum { CASE_TOKENS = 40 };

typedef struct emulate_case {
    const char *model; /* "kjv-llama" */
    fd_graph *graph;
    int32_t tokens[CASE_TOKENS];
} emulate_case;

enum { CASE_MODELS = 2 };
emulate_case case_open(int i); /* the i-th bundled model, 0 … CASE_MODELS - 1: kjv-llama (Q8_0), kjv-qwen2 (F16) */

/* `text`: a class as in fd_emulate_parse ("f16:3"), or "exact" or "f64" for the reference. */
fd_exec *case_exec(const fd_graph *graph, const char *text, int32_t n_thread);

/* Logits of all CASE_TOKENS positions [CASE_TOKENS, n_vocab], in batches of `batch` tokens. */
float *case_logits(const emulate_case *c, fd_exec *exec, int32_t batch);
float *case_run(const emulate_case *c, const fd_graph *graph, const char *text, int32_t n_thread, int32_t batch);
int64_t case_n_logit(const emulate_case *c);

int64_t bits_apart(const float *a, const float *b, int64_t n); /* elements whose bits differ */

/* Node rows [n_pos, row_stride] of a pass over `n` tokens, as the observer is shown them. */
float *case_node(const emulate_case *c, const fd_graph *graph, const char *text, int32_t n, const char *node);

#endif

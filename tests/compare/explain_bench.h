/* What the tests of explanations share: the bundled models, a prompt, and the score. */
#ifndef FD_TESTS_COMPARE_EXPLAIN_BENCH_H
#define FD_TESTS_COMPARE_EXPLAIN_BENCH_H

#include "tests/compare/recorded_run.h"

enum { N_PROMPT = 5, N_MODEL = 2 };
extern const char *const models[N_MODEL];
extern const int32_t prompt[N_PROMPT];

typedef struct bench {
    fd_gguf *gguf;
    fd_graph *graph;
} bench;

void must(fd_code code, const fd_error *err);
bench open_model(const char *name); /* skips the test when the model is not there */
void close_model(bench *b);

typedef struct score {
    int32_t n_injected, n_located, n_named, n_together, n_wrong, n_unnamed;
} score;
void print_score(const char *what, const score *s);

/* Is the fault named, or among what remains possible? */
bool among_remaining(const fd_explanation *e, const char *name);

#endif

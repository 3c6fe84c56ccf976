/* A prefill with every tensor kept in memory, for tests of explanations. */
#ifndef FD_TESTS_COMPARE_RECORDED_RUN_H
#define FD_TESTS_COMPARE_RECORDED_RUN_H

#include "compare/explain/explain.h"

typedef struct recorded_run {
    const fd_graph *graph; /* borrowed */
    int32_t n_pos;
    float **rows; /* [n_node] owned; as an observer saw them */
} recorded_run;

/* cpu:exact from position 0. Fails the running test when something goes wrong. */
recorded_run record_run(const fd_graph *graph, const int32_t *tokens, int32_t n_pos);
void recorded_run_free(recorded_run *run);

/* The first node whose rows differ in an element that counts; -1. */
int32_t first_difference(const recorded_run *a, const recorded_run *b);

/* What to ask about `node` of `run`; exact, every tensor recorded. `graph` is the one without faults. */
fd_explain_request ask_about(recorded_run *run, const fd_graph *graph, const int32_t *tokens, int32_t node);

#endif

/* Bugs that no row of the table has, put into a graph, and what the verdict must say of them. */
#ifndef FD_TESTS_COMPARE_GUESS_BENCH_H
#define FD_TESTS_COMPARE_GUESS_BENCH_H

#include "tests/compare/replay_bench.h"

typedef struct guessed {
    const char *nodes; /* a suffix: in every layer; a name: there */
    void (*edit)(fd_graph *graph, fd_node *node);
    const char *name, *says;
} guessed;

/* What is recorded: globs. */
extern const char *const all, *const fused, *const hooks, *const layers;

/* `stated`: the trace says its numerics. */
void expect_guess(const bench *b, const guessed *bug, const char *tensors, const char *emulated, bool stated);

#endif

/* What the tests of explanations and replay share: a model with everything that is made of it, a prompt, and the
 * score. */
#ifndef FD_TESTS_COMPARE_EXPLAIN_BENCH_H
#define FD_TESTS_COMPARE_EXPLAIN_BENCH_H

#include "dumpers/store/trace.h"
#include "tests/compare/recorded_run.h"

enum { N_PROMPT = 5, N_MODEL = 2 };
extern const char *const models[N_MODEL];
extern const int32_t prompt[N_PROMPT];

typedef struct bench {
    fd_gguf *gguf;
    fd_graph *graph;
    fd_trace *ref;       /* of a run to compare with; NULL: none. Closed with the model */
    fd_graph *made[256]; /* [n_made] copies with faults; freed with the model */
    fd_fault_owner *owners[512];
    int32_t n_made, n_owner;
} bench;

void must(fd_code code, const fd_error *err);

/* These skip the test when the model is not there. open_arch: a conformance model in the shared files. */
bench open_model(const char *name);
bench open_arch(const char *name);
void close_model(bench *b);

/* A copy of the graph with the faults of the table, joined by "+"; NULL: the model has nothing that they could
 * change. Freed with the model, or by `forget`, which frees all copies. */
fd_graph *faulted(bench *b, const char *faults);
fd_graph *faulted_copy(bench *b, const fd_graph *of, const char *faults); /* of another graph */

/* A copy of the graph in which `how` computes the node. */
fd_graph *spoiled(bench *b, const char *node, fd_override_fn how);
void forget(bench *b);

typedef struct score {
    int32_t n_injected, n_located, n_named, n_together, n_wrong, n_unnamed;
} score;
void print_score(const char *what, const score *s);

/* Is the fault named, or among what remains possible? */
bool among_remaining(const fd_explanation *e, const char *name);

/* Counts what an explanation says of a fault that was injected as `spec`, and prints it unless it is the fault
 * alone. True when the fault is named. */
bool count_answer(const fd_explanation *e, const char *fault, const char *spec, const char *model, score *s);

/* Runs `graph` with the fault in `layer` (outside the layers: once) and explains the first node that differs from
 * `clean`. */
void inject_and_explain(bench *b, const fd_graph *graph, recorded_run *clean, const int32_t *tokens, int32_t fault,
                        int32_t layer, const char *model, score *s);

#endif

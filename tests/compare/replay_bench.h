/* What the tests of replay share: traces of the bundled models in every emulated class, and their verdict. */
#ifndef FD_TESTS_COMPARE_REPLAY_BENCH_H
#define FD_TESTS_COMPARE_REPLAY_BENCH_H

#include "base/text.h"
#include "compare/compare_model.h"
#include "compare/attribute/attribution.h"
#include "emulate/emulate.h"
#include "faults/faults.h"
#include "tests/compare/explain_bench.h"

enum { N_PREFILL = 6, N_DECODE = 2 };

typedef struct recording {
    const char *emulated; /* class; NULL: exact */
    bool q8act;           /* the reference in q8act instead of exact */
    const char *numerics; /* what the trace says; NULL: the truth */
    const char *tensors;  /* glob */
    bool fingerprints_only;
    int32_t n_prompt;        /* 0: N_PREFILL, then N_DECODE steps; else no decode */
    const int32_t *tokens;   /* [N_PREFILL + N_DECODE] fed; NULL: the usual ones */
    const fd_graph *weights; /* the model's: hashes of the weights are recorded; NULL: none */
    bool one_by_one;         /* every position is a step of its own */
    int32_t first_chunk;     /* positions of the prompt that are a step of their own; 0: all are */
    uint32_t store;          /* element type in the file; 0: as computed */
    int32_t step_first;      /* steps before it are kept as fingerprints alone */
    void (*misrecord)(const fd_observation *seen, float *rows); /* changes what is recorded, [n_pos, row_stride] */
} recording;

/* Opened from a temporary file that is gone already. Fails the running test when something goes wrong. */
fd_trace *record(const fd_graph *graph, recording how);

/* Compares and judges by replay; closes the candidate. class_name NULL: what the trace says, else inferred. */
fd_verdict judge(const fd_graph *graph, const fd_trace *ref, fd_trace *cand, const char *class_name);

/* A model with `ref`, a trace of it; and the verdict on a candidate beside that, its class as the trace says, else
 * inferred. */
bench open_bench(const char *model, recording ref);
fd_verdict judged(const bench *b, const fd_graph *graph, recording how);

/* What a verdict must say of a clean run; frees it. */
void expect_noise(fd_verdict v, const char *model, const char *what);

/* What it must say of a fault: diverged, at that node. */
void expect_at(fd_verdict *v, const char *node, const char *what);

/* ---- spoiled results ---- */

/* The op as the reference computes it: what an override spoils afterwards. */
void run_clean(const fd_op_args *args);
/* A copy of input `slot`, [n], to be changed; then the op with it in that input's place, which frees it. */
float *copy_input(const fd_op_args *args, int slot, int64_t n);
void run_with(const fd_op_args *args, int slot, float *rows);
void third_head_scaled(const fd_op_args *args); /* by 1.01 */
void rounded_to_f16(const fd_op_args *args);
/* A cache, with the largest value of K or of V in kjv-llama over 127 as its step. */
void in_int8_with_a_given_scale(const fd_op_args *args);

/* The model's graph, whose nodes the test may change; freed with fd_graph_free. */
fd_graph *graph_copy(const bench *b);

/* A copy of the graph in which `how` computes that tensor of every layer. */
fd_graph *spoiled_everywhere(const bench *b, const char *suffix, fd_override_fn how);

#endif

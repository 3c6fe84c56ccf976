/* An executor that computes nothing: every element is a hash of (node, position, token, index), with chosen elements
 * changed. Runs and traces that differ in exactly one place cost nothing to make. */
#ifndef FD_TESTS_COMPARE_FAKE_RUN_H
#define FD_TESTS_COMPARE_FAKE_RUN_H

#include "compare/compare.h"
#include "dumpers/store/trace.h"

typedef enum fake_change {
    FAKE_ULP,        /* the next binary32 away from zero */
    FAKE_SET,        /* `value` */
    FAKE_SWAP_HEADS, /* rows 0 and 1 of [n_head, …] change places */
} fake_change;

typedef struct fake_edit {
    const char *node;
    int32_t pos;   /* -1: at every position */
    int64_t index; /* in the position's tensor, without padding */
    fake_change change;
    float value;
} fake_edit;

typedef struct fake_options {
    const char *skip_node; /* this node is not shown; NULL: all are */
    const char *fail_node; /* the run fails at this node of step fail_step */
    int32_t fail_step;
    bool f64;              /* shows binary64 */
    double f64_offset;     /* added to every element of a binary64 run */
    fake_edit edits[4];    /* unused: node NULL */
} fake_options;

/* A graph of 2 layers with every op (small_model), kept for the life of the test process. */
const fd_graph *fake_graph(void);

/* Freed with fd_exec_free. */
fd_exec *fake_exec(const fake_options *options);

typedef struct fake_trace_options {
    fake_options run;
    fd_trace_level level;
    const char *tensors;      /* glob; NULL: all */
    const char *model_hash;   /* NULL: "xxh3-128:0…0" */
    const char *arch;         /* NULL: the graph's */
    const char *numerics;     /* NULL: by run.f64 */
    int32_t contract;         /* 0: FD_CONTRACT_VERSION for "exact" */
    int32_t n_prompt;         /* 0: 5, one prefill */
    int32_t n_decode;         /* 0: 3 steps of one position; -1: none */
    const char *prompt;       /* its text; NULL: not recorded */
    int32_t token_at, token;  /* tokens[token_at] = token when token_at > 0 */
    int32_t abandon_after;    /* steps, then the trace is left incomplete; 0: finished */
} fake_trace_options;

/* Writes the trace and opens it. The file is removed at once; reading goes on. */
fd_trace *fake_trace(const fake_trace_options *options);

/* The token at a position in every fake trace, unless token_at says otherwise. */
int32_t fake_token(int32_t pos);

/* A trace as a foreign engine writes it, without /graph and fingerprints: one tensor [n_pos, n] of raw 16-bit floats
 * (or binary32 with dtype FD_F32), tokens as fake_token's. `values` [n_pos * n]. */
fd_trace *foreign_trace(const char *name, uint32_t dtype, const float *values, int32_t n_pos, int32_t n);

/* Compares two traces, names of `allow` (a glob; NULL: none) being allowed to be missing; closes both. Fails the
 * test. */
fd_verdict fake_compare(fd_trace *ref, fd_trace *cand, const char *allow);
/* A clean reference of `level` against a candidate. */
fd_verdict fake_against_clean(fd_trace_level level, const fake_trace_options *cand);

#endif

/* Comparing one node's output of two sides of a lockstep run. Used inside compare/ only. */
#ifndef FD_COMPARE_DIFF_LOCKSTEP_JUDGE_H
#define FD_COMPARE_DIFF_LOCKSTEP_JUDGE_H

#include "compare/diff/lockstep.h"

typedef struct fd_judge {
    const fd_graph *graph; /* the reference executor's, else the candidate's: names and order */
    const fd_trace *trace; /* NULL when both sides run */
    bool trace_is_ref;
    bool same_contract;    /* trace and executor: fingerprints can be compared */
    fd_verdict *verdict;
    fd_step_kind step_kind;
    const char *const *allow_missing; /* [n_allow_missing], as in fd_lockstep_options */
    int32_t n_allow_missing;
    int64_t n_shown;     /* tensors that came here, compared or not */
    int32_t *seen_until; /* [n_node] positions compared without a gap from 0; owned */
    int32_t *seen_step;  /* [n_node] last step of which every position was compared; owned */
    void *buffer[2];     /* one unpadded row a side; owned */
    size_t capacity[2];
} fd_judge;

fd_code fd_judge_open(const fd_graph *graph, const fd_trace *trace, bool trace_is_ref, const fd_exec *exec,
                      fd_verdict *verdict, fd_judge *out, fd_error *err);
void fd_judge_close(fd_judge *judge);

/* Compares the node both executors show. FD_STOP at the first divergence, which is then in the verdict. */
fd_code fd_judge_live(fd_judge *judge, const fd_observation *ref, const fd_observation *cand, fd_error *err);

/* Notes that one side alone has the node. */
fd_code fd_judge_unmatched(fd_judge *judge, const fd_observation *only, bool in_ref, fd_error *err);

/* Compares what the executor shows with the trace's tensor of that name; what the trace lacks becomes "missing". */
fd_code fd_judge_trace(fd_judge *judge, const fd_observation *live, fd_error *err);

#endif

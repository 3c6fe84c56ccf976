/* Compares one node's output on the two sides of a lockstep run and notes what it finds in the verdict. Used inside
 * compare/ only. */
#ifndef FD_COMPARE_DIFF_LOCKSTEP_COMPARATOR_H
#define FD_COMPARE_DIFF_LOCKSTEP_COMPARATOR_H

#include "compare/diff/comparator.h"
#include "compare/verdict.h"

typedef struct fd_lockstep_comparator {
    const fd_graph *graph; /* the reference executor's, else the candidate's: names and order */
    const fd_trace *trace; /* NULL when both sides run */
    bool trace_is_ref;
    bool same_contract;     /* of trace and executor: fingerprints can be compared */
    bool fingerprints_only; /* elements are not read where fingerprints can be compared */
    fd_verdict *verdict;
    fd_step_kind step_kind;
    const char *const *allow_missing; /* [n_allow_missing] globs over node names */
    int32_t n_allow_missing;
    int64_t n_shown;     /* tensors that came here, compared or not */
    int32_t *seen_until; /* [n_node] positions compared without a gap from 0; owned */
    int32_t *seen_step;  /* [n_node] last step of which every position was compared; owned */
    fd_comparator rows;
} fd_lockstep_comparator;

/* Makes the lists that out->graph asks for; the other members are the caller's. */
fd_code fd_lockstep_comparator_open(fd_lockstep_comparator *out, fd_error *err);
void fd_lockstep_comparator_close(fd_lockstep_comparator *comparator);

/* Compares the node that both executors show. FD_STOP at the first divergence, which is then in the verdict. */
fd_code fd_lockstep_compare(fd_lockstep_comparator *c, const fd_observation *ref, const fd_observation *cand,
                            fd_error *err);

/* Notes that only one side has the node. */
fd_code fd_lockstep_unmatched(fd_lockstep_comparator *c, const fd_observation *only, bool in_ref, fd_error *err);

/* Compares what the executor shows with the trace's tensor of that name; what the trace lacks becomes "missing".
 * FD_STOP as above. */
fd_code fd_lockstep_compare_trace(fd_lockstep_comparator *c, const fd_observation *live, fd_error *err);

/* What fd_lockstep_compare_trace needs of a node (a fd_wants_fn; `user` is the comparator). */
unsigned fd_lockstep_wants(void *user, const fd_node *node);

#endif

/* A run's tensors kept, and another run's compared with them node by node. */
#ifndef FD_TESTS_GPU_LOCKSTEP_H
#define FD_TESTS_GPU_LOCKSTEP_H

#include "exec/exec.h"

/* The tensors of one forward call of the reference. */
typedef struct lockstep {
    int32_t n_node;
    float **rows;      /* [n_node] malloc'ed, [n_pos, row_stride] as observed */
    size_t *n;         /* [n_node] elements */
    uint64_t *differ;  /* [n_node] elements that differed, all calls together */
    uint64_t compared; /* elements */
    int32_t n_seen;    /* nodes observed in this call */
    int32_t n_wrong_shape;
    bool printed; /* the first difference has been described */
} lockstep;

fd_code lockstep_open(lockstep *l, const fd_graph *graph, fd_error *err);
void lockstep_close(lockstep *l);

fd_observer lockstep_record(lockstep *l);
fd_observer lockstep_compare(lockstep *l);

/* Ends a call of the compared run: every node must have been seen once. */
bool lockstep_complete(lockstep *l);
/* Prints a line for each node that differed, and unless `quiet` their number; true when none did. */
bool lockstep_report(const lockstep *l, const fd_graph *graph, bool quiet);

#endif

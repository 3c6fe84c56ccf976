/* Between the files of faults/: how a row of the table changes a graph. */
#ifndef FD_FAULTS_INTERNAL_H
#define FD_FAULTS_INTERNAL_H

#include "faults/faults.h"

struct fd_fault_owner {
    void **blocks; /* replaced weight bytes, malloc'ed */
    int32_t n_block;
};

/* Edits one node when the fault concerns it; *n_changed counts. */
typedef fd_code (*fd_fault_edit)(fd_graph *graph, fd_node *node, fd_fault_owner *owner, int32_t *n_changed,
                                 fd_error *err);

typedef struct fd_fault {
    fd_fault_info info;
    fd_fault_edit edit;
} fd_fault;

/* weight_faults.c */
fd_code fd_fault_weight_in_out(fd_graph *graph, fd_node *node, fd_fault_owner *owner, int32_t *n_changed, fd_error *err);
fd_code fd_fault_bytes_short(fd_graph *graph, fd_node *node, fd_fault_owner *owner, int32_t *n_changed, fd_error *err);

/* op_faults.c: overrides, host memory, binary32 */
void fd_fault_norm_eps_outside(const fd_op_args *args);
void fd_fault_softmax_all_masked(const fd_op_args *args);
void fd_fault_scores_q0_only(const fd_op_args *args);

#endif

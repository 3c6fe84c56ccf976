/* Faults: the real bugs of other engines, each a row of a table, injected into a graph before any executor sees it.
 * docs/faults.md lists them with the public cases they come from. */
#ifndef FD_FAULTS_FAULTS_H
#define FD_FAULTS_FAULTS_H

#include "model/exec.h"

typedef struct fd_fault_info {
    const char *name;    /* "rope_pairing" */
    const char *family;  /* "loader", "norm", "matmul", "rope", "attention", "kv_cache" */
    const char *summary; /* one line: what the faulty engine does */
    const char *located; /* the node suffix where it first shows: "attn_q_rope" */
} fd_fault_info;

int32_t fd_fault_count(void);
const fd_fault_info *fd_fault_at(int32_t i);

/* Applies "NAME" or "NAME@LAYER" (all layers without @) to a graph of the caller's own (fd_graph_clone). Replaced weight
 * bytes are owned by *owner, which must outlive the graph's use. FD_ERR_INPUT: unknown name (lists the known), layer out of
 * range, or nothing in this model that the fault could change ("model has no QKV bias"). */
typedef struct fd_fault_owner fd_fault_owner;
fd_code fd_fault_apply(const char *spec, fd_graph *graph, fd_fault_owner **owner, fd_error *err);
void fd_fault_owner_free(fd_fault_owner *owner);

#endif

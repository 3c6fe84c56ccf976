/* Two aligned traces and what is needed to look at one tensor of both. Used inside compare/ only. */
#ifndef FD_COMPARE_DIFF_TRACE_PAIR_H
#define FD_COMPARE_DIFF_TRACE_PAIR_H

#include "compare/diff/align.h"
#include "compare/diff/comparator.h"
#include "exec/peers.h"

typedef struct fd_trace_pair {
    const fd_trace *ref, *cand; /* borrowed */
    fd_alignment align;
    fd_comparator comparator;
    fd_peers *peers; /* processes that each look at a share of the tensors; NULL: this one alone; borrowed */
    size_t memory;   /* bytes that lists made for a comparison may take; what remains is small */
} fd_trace_pair;

fd_code fd_trace_pair_open(const fd_trace *ref, const fd_trace *cand, fd_trace_pair *out, fd_error *err);
void fd_trace_pair_close(fd_trace_pair *pair);

/* Compares one node at one position; see fd_compare_tensors. Another shape is a difference. */
fd_code fd_trace_pair_look(fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look *out, fd_error *err);

/* By fingerprint alone: false when the two cannot be compared so. */
bool fd_trace_pair_fingerprints(const fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look *look);

/* Element by element; see fd_compare_elements. */
fd_code fd_trace_pair_values(fd_trace_pair *pair, const fd_node_pair *node, int32_t pos, fd_look *look, fd_error *err);

/* The pair whose reference node is named so; NULL when there is none. */
const fd_node_pair *fd_trace_pair_find(const fd_trace_pair *pair, const char *name);

#endif

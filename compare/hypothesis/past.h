/* FD_CACHE_PAST: rows of earlier steps that are read from another cache (past.c). */
#ifndef FD_COMPARE_HYPOTHESIS_PAST_H
#define FD_COMPARE_HYPOTHESIS_PAST_H

#include "compare/hypothesis/hypothesis.h"

/* The cache that this node finds earlier steps' rows in; -1: its own, or it reads none. */
int32_t fd_hypothesis_past_of(const fd_hypothesis *h, const fd_graph *graph, const fd_node *node);

/* Changes scores, or what is mixed of the values, in place; out->other: rows of that cache. */
void fd_hypothesis_past(const fd_node *node, const fd_output_rows *out);

#endif

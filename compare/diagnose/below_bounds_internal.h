/* Bugs below the bounds: below_bounds_look.c looks along each bug at one recorded node, below_bounds.c finds the bug that
 * shows, at which nodes. */
#ifndef FD_COMPARE_DIAGNOSE_BELOW_BOUNDS_INTERNAL_H
#define FD_COMPARE_DIAGNOSE_BELOW_BOUNDS_INTERNAL_H

#include "compare/diagnose/below_bounds.h"
#include "compare/explain/projection.h"

/* A fault of the table, wherever it concerns a node (all are -1); or at the norms of one kind, of one layer, or at one norm (the
 * others are -1); or at those of n_dim dimensions: of whole rows, or of heads, Q's and K's, where another kernel norms these. */
typedef struct fd_below_bug {
    int32_t fault, kind, layer, node;
    int32_t n_dim; /* 0: any */
} fd_below_bug;

typedef struct fd_below_search {
    const fd_graph *graph;
    const fd_diagnose_options *o;
    bool binary32;      /* a class that leaves no more: below_bounds.h */
    fd_below_bug *bugs; /* [n_bug]; the first n_fault are the table; owned */
    int32_t n_fault, n_bug;
    fd_projection **at; /* [n_node][n_bug]; NULL: not looked at; owned */
    double *cost;       /* [n_node] multiplications; owned */
    int32_t *kind;      /* fd_fault_kinds; owned */
} fd_below_search;

/* FD_ERR_MEMORY; freed with fd_below_close also then. */
fd_code fd_below_open(const fd_diagnose_options *options, fd_below_search *out, fd_error *err);
void fd_below_close(fd_below_search *search);

/* Fills at[node], unless nothing is to be seen there. From several threads, each with a node of its own. */
fd_code fd_below_look(fd_below_search *search, int32_t node, fd_error *err);

/* Shows `look` the node's rows of the longest step: directions need many. */
fd_code fd_below_look_with(const fd_diagnose_options *options, int32_t node, fd_diagnose_look_fn look, void *user,
                           fd_error *err);

/* Adds to `out`, which names a bug at the norm `node`, another eps where that takes about as much away (`no_eps`: along the direction of
 * none at all, whose slope says how much more it is); before the bug where it takes more. */
void fd_below_or_eps(const fd_graph *graph, int32_t node, const fd_projection *named, const fd_projection *no_eps,
                     fd_explanation *out);

/* An explanation that `p` shows; z: there where it changes most. */
fd_explain_fit fd_below_fit(const fd_graph *graph, const fd_hypothesis *h, const fd_projection *p);

/* Where a bug that `p` shows is largest. */
fd_node_finding fd_below_finding(const fd_graph *graph, const fd_trace *trace, int32_t node, const fd_projection *p,
                                 int32_t span_first);

#endif

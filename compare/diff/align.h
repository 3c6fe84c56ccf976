/* Which node of one trace is which node of the other, and how far the two can be compared at all. */
#ifndef FD_COMPARE_DIFF_ALIGN_H
#define FD_COMPARE_DIFF_ALIGN_H

#include "compare/verdict.h"

typedef struct fd_node_pair { /* indices of fd_trace_node_at */
    int32_t ref, cand;
    bool same_shape; /* false: the numbers of elements, or the dimensions, disagree */
} fd_node_pair;

typedef struct fd_alignment {
    fd_node_pair *pairs; /* [n_pair], in the reference's order of execution; owned */
    int32_t n_pair;
    int32_t *only_ref; /* [n_only_ref] nodes without a partner of the same name; owned */
    int32_t n_only_ref;
    int32_t *only_cand;
    int32_t n_only_cand;
    int32_t n_pos;               /* positions both have */
    int32_t first_token_differs; /* lowest common position whose tokens differ; n_pos when all agree */
    fd_equality same_model;      /* by hash; unknown when a side did not record one */
    fd_equality same_arch;
    bool same_contract; /* same numerics and contract, both stated: fingerprints can be compared */
} fd_alignment;

/* Pairs nodes of equal names; a name occurs once in a trace. Fails with FD_ERR_MEMORY only. */
fd_code fd_align_traces(const fd_trace *ref, const fd_trace *cand, fd_alignment *out, fd_error *err);
void fd_alignment_free(fd_alignment *alignment); /* frees what it owns, not the struct */

typedef struct fd_tensor_shape { /* of one position */
    int32_t n_dim;
    const int32_t *dims; /* [n_dim] borrowed */
    bool over_kv;        /* the last dimension runs over key positions */
} fd_tensor_shape;
/* True when the dimensions agree, or when one side is flat ([512] against [8, 64]: same elements, same order). */
bool fd_same_shape(fd_tensor_shape a, fd_tensor_shape b);

/* The three names of `trace` nearest to `name` (edit distance), written as "a, b, c"; "" for an empty trace. */
void fd_nearest_nodes(const fd_trace *trace, const char *name, char *to, size_t size);

#endif

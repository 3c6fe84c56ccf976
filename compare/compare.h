/* Comparing two recorded traces: the first tensor, in the reference's order of execution, that is not the same.
 *
 * Tokens come first in every step; tensors are compared by fingerprint where both traces follow the same contract
 * (then only the first divergence is read), else element by element. A verdict of "identical" means that every
 * tensor of either trace was compared, at every position of either; what could not be compared is listed. */
#ifndef FD_COMPARE_COMPARE_H
#define FD_COMPARE_COMPARE_H

#include "compare/verdict.h"
#include "exec/peers.h"
#include "model/tokenizer/tokenizer.h"

#define FD_COMPARE_MEMORY ((size_t)512 << 20)

typedef struct fd_compare_options {
    const char *const *allow_missing; /* [n_allow_missing] globs over node names that need not be on both sides */
    int32_t n_allow_missing;
    fd_peers *peers;               /* processes that compare the same traces together; NULL: this one alone */
    size_t memory;                 /* bytes that lists made for the comparison may take; 0: FD_COMPARE_MEMORY */
    const fd_graph *graph;         /* of the model both ran, for the attributes of a node; NULL: not known */
    const fd_tokenizer *tokenizer; /* the model's, to say what became of special tokens; NULL: not known */
    void (*progress)(void *user, int64_t done, int64_t total); /* of positions, after each step; NULL: not called */
    void *progress_user;
} fd_compare_options;

/* Fails only when something cannot be read or memory runs out; every finding is in *out, which the caller frees with
 * fd_verdict_free (also after a failure). Two different models are not compared at all: incomplete. */
fd_code fd_compare_traces(const fd_trace *ref, const fd_trace *cand, const fd_compare_options *options, fd_verdict *out,
                          fd_error *err);

#endif

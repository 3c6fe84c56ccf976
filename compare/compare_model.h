/* Two traces and their model: what fd_compare_traces found in bits, judged by replay. */
#ifndef FD_COMPARE_COMPARE_MODEL_H
#define FD_COMPARE_COMPARE_MODEL_H

#include "compare/bounds/numerics_class.h"
#include "compare/verdict.h"
#include "exec/products.h"
#include "model/tokenizer/tokenizer.h"

typedef struct fd_compare_model_options {
    const fd_graph *graph;
    const fd_trace *ref, *cand;
    fd_op_fn op;
    const fd_products
        *device; /* takes large products of the replay from the CPU; no verdict changes. NULL: none does */
    const fd_numerics_class *numerics; /* the candidate's; NULL: what its trace says, else inferred */
    const fd_tokenizer *tokenizer;     /* the model's, for the texts of tokens; NULL: not known */
    /* `what`: "try classes", then "replay tensors", in rows of both traces; NULL: not called */
    void (*progress)(void *user, const char *what, int64_t done, int64_t total);
    void *progress_user;
} fd_compare_model_options;

/* Turns a verdict of fd_compare_traces into one by replay, with an explanation of the first introduced error
 * (compare/diagnose/diagnose.h):
 *
 * - the candidate introduced an error: DIVERGED at the first such node;
 * - it did not, but the reference's own trace has one (judged by its own class): DIVERGED there, and said so;
 * - neither: NOISE, unless reasons, missing tensors or different tokens forbid it, or there are fewer than two positions:
 *   then INCOMPLETE (position 0 alone cannot tell: RoPE is the identity there and attention has one weight, 1).
 *
 * Left as it is when every bit agrees, when shapes differ, and when the candidate holds no elements to replay (a note
 * says so). */
fd_code fd_compare_with_model(const fd_compare_model_options *options, fd_verdict *verdict, fd_error *err);

#endif

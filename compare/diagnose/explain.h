/* Explaining one finding: every fault of faults/ that concerns the node is computed on the candidate's own inputs,
 * and one is named only if it gives the candidate's values and nothing else does (docs/faults.md has the rule).
 *
 * Residual of a variant: z = |c − v| / τ, where τ is the bound of that variant (of its op, weights and inputs); the
 * largest over all elements, and the root of the mean square over a position's row. Equal values are 0, and so are
 * two NaN; where τ is 0, or one alone is NaN or infinite, anything else is +Inf. Where the candidate rounds, a NaN
 * for an Inf is 0 too: the order of a sum decides which of them comes out.
 *
 * A variant fits when its largest z is ≤ 1. It is clearly beyond when its largest z is > 10, or the root of the mean
 * square is > 1 in at least four rows: τ bounds the worst of all elements, so a row that reaches it on the average
 * is no rounding. A variant is named when it fits and the unmodified op and every other variant are clearly beyond,
 * here or, where they are recorded, at other nodes that the faults concern. Variants with the same bits are named
 * together. */
#ifndef FD_COMPARE_DIAGNOSE_EXPLAIN_H
#define FD_COMPARE_DIAGNOSE_EXPLAIN_H

#include "compare/bounds/bounds.h"
#include "compare/diagnose/explanation.h"

typedef struct fd_explain_request {
    /* graph (without faults), node, positions, tokens (EMBED), and in[]: the candidate's recorded inputs, float;
     * `weight`, the rope tables and `out` are not read. KV_WRITE: give all positions from 0, rows before pos0 are
     * taken for zero */
    fd_op_args args;
    const float
        *output; /* the candidate's rows, [n_pos, fd_node_row_stride]; KV_WRITE: the cache rows of the positions */
    const fd_numerics_class *numerics; /* the candidate's, for the bounds of every variant; NULL: exact, τ = 0 */
    double n_output;                   /* as in fd_bound_args */
    uint32_t k_type, v_type;           /* in which K and V are kept; FD_F32: as the class keeps them */
    const double *tau;                 /* without `numerics`: bounds for every variant alike, laid out as output */
    fd_op_fn op;
    /* The candidate's rows of another node at these positions, laid out as fd_op_args.in (KV_WRITE: the cache from
     * position 0); NULL when it was not recorded. May be NULL: faults that read other tensors are then not tried. */
    const float *(*tensor)(void *user, int32_t node);
    /* Its rows at all positions before these; NULL when one of them was not recorded. May be NULL. */
    const float *(*before)(void *user, int32_t node);
    uint32_t (*stored)(void *user, int32_t node); /* element type in which the trace holds a node; NULL: as it was */
    void *user;
    /* Leading rows that are context: as the op should have them. A step that comes after others needs theirs where a
     * cache was not recorded. */
    int32_t n_context;
    /* Leading rows that are not judged, at least n_context: of those after the context, K and V are what the hypothesis
     * makes of them. What no cache is made of is computed from the row before the first judged one on. */
    int32_t n_unjudged;
    /* Leading rows of earlier steps, which are right: what changes rows that came out leaves them alone. (Rows written to
     * another place may not: they tell themselves by what they do to those.) At least n_context. */
    int32_t n_earlier;
    /* The same question about fewer rows, the finding's among them, for what is tried often: guesses beside the table,
     * and numbers that are solved for. NULL: the table alone is tried. */
    const struct fd_explain_request *few;
    int32_t n_tokens_before;      /* tokens of earlier positions that stand before args.tokens[0] */
    int32_t n_tokens_after;       /* and of later ones, behind the last row's */
    int32_t n_prompt;             /* positions before the run's first step of one row */
    const fd_hypothesis *without; /* [n_without] refuted: not to be tried */
    int32_t n_without;
    bool table_alone;     /* no guesses */
    bool departing_alone; /* others of the step are right, and stand among the leading rows or are not here */
    bool right_too;       /* fd_explain_fits: the op as it should be may give the values as well */
    double most_spent;    /* multiplications of few rows; 0: as many as a person waits for */
    double products;      /* multiplications a row of the ops that a hypothesis runs; 0: nobody counts them */
} fd_explain_request;

/* FD_ERR_MEMORY alone. */
fd_code fd_explain(const fd_explain_request *request, fd_explanation *out, fd_error *err);

/* Does this one hypothesis give the candidate's values (z ≤ 1), where the op as it should be does not? Says nothing of
 * rivals. */
fd_code fd_explain_fits(const fd_explain_request *request, const fd_hypothesis *h, bool *fits, fd_error *err);

#endif

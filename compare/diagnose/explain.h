/* Naming the bug: every fault of faults/ that concerns the first introduced node is computed on the candidate's own
 * inputs, and one is named only if it gives the candidate's values and nothing else does (docs/faults.md has the rule).
 *
 * Residual of a variant: z = |c − v| / τ, τ being the bound of that variant (of its op, weights and inputs), the largest over
 * all elements and the root of the mean square over a position's row. Equal values, and NaN beside NaN, are 0; where τ is 0, or one alone is NaN
 * or infinite, anything else is +Inf. Beside rounding, NaN beside Inf is 0 too: orders of sums decide which of them it is.
 *
 * A variant fits when its largest z is ≤ 1. It is clearly beyond when its largest z is > 10, or the root of the mean square
 * > 1 in at least four rows: τ bounds the worst of all elements, so rows that reach it on the average are no rounding. Named is what fits when the
 * unmodified op and every other variant are clearly beyond, here or, where they are recorded, at other nodes that the
 * faults concern. Variants that nothing tells apart are named together when they give the same bits. */
#ifndef FD_COMPARE_DIAGNOSE_EXPLAIN_H
#define FD_COMPARE_DIAGNOSE_EXPLAIN_H

#include "compare/bounds/bounds.h"
#include "faults/faults.h"

typedef struct fd_explain_request {
    fd_op_args args; /* graph (without faults), node, positions, tokens (EMBED), and in[]: the candidate's recorded
                            inputs, float; `weight`, the rope tables and `out` are not read. KV_WRITE: give all positions
                            from 0, rows before pos0 are taken for zero */
    const float
        *output; /* the candidate's rows, [n_pos, fd_node_row_stride]; KV_WRITE: the cache rows of the positions */
    const fd_numerics_class *numerics; /* the candidate's, for the bounds of every variant; NULL: exact, τ = 0 */
    double n_output;                   /* as in fd_bound_args */
    const double *tau;                 /* without `numerics`: bounds for every variant alike, laid out as output */
    fd_op_fn op;
    const float *(*tensor)(void *user,
                           int32_t node); /* the candidate's rows of another node at these positions, laid out as
                            fd_op_args.in (KV_WRITE: the cache from position 0); NULL when it was not recorded. May be NULL:
                            faults that read other tensors are then not tried */
    uint32_t (*stored)(void *user, int32_t node); /* element type in which the trace holds a node; NULL: as it was */
    void *user;
} fd_explain_request;

typedef struct fd_explain_fit {
    const fd_fault_info *fault; /* NULL: none */
    double z;         /* largest */
    int32_t n_row_beyond; /* positions in which the root of the mean square of z is > 1 */
    double ulp;       /* worst element in units in the last place; +Inf where one alone is NaN or infinite */
    int64_t n_beyond; /* elements beyond τ */
} fd_explain_fit;

enum { FD_MAX_REMAINING = 8 };

typedef struct fd_explanation {
    bool named;
    fd_explain_fit remaining[FD_MAX_REMAINING]; /* named: the fault, and its equivalents behind it; else whatever is
                                                   not clearly beyond, best first */
    int32_t n_remaining;                        /* may exceed FD_MAX_REMAINING: only the first ones are kept */
    fd_explain_fit unmodified;                  /* the op as it should be; fault NULL */
    fd_explain_fit runner_up;                   /* the best of the others */
    int32_t n_tried;                            /* faults that concern the node and were computed */
    int32_t n_without_effect; /* of those, the ones that give the unmodified op's bits on these inputs */
    int32_t n_untried;        /* they read tensors that were not recorded */
    char reason[256];         /* why nothing is named; "" when named */
    char next[192];           /* what would tell the remaining ones apart; "" */
} fd_explanation;

enum { FD_MAX_ALSO = 6 };

/* What name_rest.h makes of all findings: nodes with one cause, in order of execution. */
typedef struct fd_same_cause {
    const fd_fault_info *fault; /* NULL: not named */
    char node[64];              /* the first of them */
    int32_t n_node;
    char layers[48]; /* "0…21", "1, 3"; "" outside the layers */
} fd_same_cause;

typedef struct fd_rest {
    fd_same_cause same;              /* the first finding's own cause; n_node counts that finding, too */
    fd_same_cause also[FD_MAX_ALSO]; /* other causes, by their first node */
    int32_t n_also;                  /* may exceed FD_MAX_ALSO: only the first ones are kept */
} fd_rest;

/* FD_ERR_MEMORY alone. */
fd_code fd_explain(const fd_explain_request *request, fd_explanation *out, fd_error *err);

/* Does this one fault give the candidate's values (z ≤ 1), where the op as it should be does not? Says nothing of rivals. */
fd_code fd_explain_fits(const fd_explain_request *request, int32_t fault, bool *fits, fd_error *err);

#endif

/* What is asked about a node's rows, and how an answer fits them. */
#ifndef FD_COMPARE_EVALUATE_REQUEST_H
#define FD_COMPARE_EVALUATE_REQUEST_H

#include "compare/bounds/bounds.h"
#include "compare/hypothesis/hypothesis.h"

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
    fd_product_memo *memo; /* of products of the graph's own weights; NULL: none */
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
    const struct fd_explain_request *early; /* and about the first rows of all, where few rows come late; NULL */
    int32_t n_tokens_before;                /* tokens of earlier positions that stand before args.tokens[0] */
    int32_t n_tokens_after;                 /* and of later ones, behind the last row's */
    int32_t n_prompt;                       /* positions before the run's first step of one row */
    const fd_hypothesis *likely;            /* tried before all others; NULL: none */
    const fd_hypothesis *without;           /* [n_without] refuted: not to be tried */
    int32_t n_without;
    bool table_alone;     /* no guesses */
    bool departing_alone; /* others of the step are right, and stand among the leading rows or are not here */
    bool right_too;       /* fd_explain_fits: the op as it should be may give the values as well */
    double most_spent;    /* multiplications of few rows; 0: as many as a person waits for */
    double products;      /* multiplications a row of the ops that a hypothesis runs; 0: nobody counts them */
} fd_explain_request;

/* How well one explanation gives the candidate's values. */
typedef struct fd_explain_fit {
    fd_hypothesis hypothesis; /* of FD_GUESS_NONE: none */
    char name[32];            /* "rope_base"; "" none */
    char summary[192];        /* what the engine does */
    char at[64];              /* the unrecorded node where it does; "": the node asked about, or several */
    double z;                 /* largest */
    double rms;               /* root mean square of |c − v|, in bounds of the op as it should be */
    int32_t n_repeated;       /* rows that it gives to their last bits, and the op as it should be does not */
    int32_t n_row_beyond;     /* positions in which the root of the mean square of z is > 1 */
    double ulp;               /* worst element in units in the last place; +Inf where one alone is NaN or infinite */
    int64_t n_beyond;         /* elements beyond τ */
} fd_explain_fit;

#endif

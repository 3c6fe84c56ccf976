/* One node's rows as a hypothesis has them (evaluate.h computes them), and how they fit the candidate's. */
#ifndef FD_COMPARE_EVALUATE_VARIANT_H
#define FD_COMPARE_EVALUATE_VARIANT_H

#include "compare/evaluate/request.h"

typedef enum fd_variant_state {
    FD_VARIANT_UNCONCERNED, /* the hypothesis leaves the node alone */
    FD_VARIANT_UNTRIED,     /* a tensor it reads was not recorded */
    FD_VARIANT_COMPUTED,
} fd_variant_state;

typedef struct fd_variant {
    fd_variant_state state;
    float *memory;   /* owned */
    float *rows;     /* in it; laid out as fd_explain_request.output */
    double *tau;     /* its own bounds, laid out as rows; owned; NULL without fd_explain_request.numerics */
    bool overridden; /* computed by a function of its own, not by the op */
} fd_variant;

void fd_variant_free(fd_variant *variant);

/* The bounds of a variant that was computed in args->out, args->node being the node as the fault has it
 * (variant_bound.c). `output`: the candidate's rows, NULL: not recorded. *tau is [n_pos, row stride], malloc'ed.
 * FD_ERR_MEMORY alone. */
fd_code fd_variant_bound(const fd_explain_request *request, const fd_op_args *args, const float *output, double **tau,
                         fd_error *err);

/* No rounding of a right engine: z > 10, or more than 1 on the average of several rows. */
bool fd_fit_clearly_beyond(const fd_explain_fit *fit);

/* How the variant fits the candidate's rows of `node`. Elements of over_kv rows past a row's own position are not
 * looked at. */
fd_explain_fit fd_variant_fit(const fd_explain_request *request, const fd_node *node, const fd_variant *variant,
                              const float *output);

/* The same bits (NaN is NaN) in every element that counts; or, where the candidate rounds, apart by less than a
 * thousandth of both bounds (values that the class flushes to zero alike). */
bool fd_variant_equal(const fd_explain_request *request, const fd_node *node, const fd_variant *a, const fd_variant *b);

/* Takes the unmodified op's bounds where they are wider. For overridden nodes: their own bound is only the op's
 * formula with their values in it. */
void fd_variant_widen(const fd_explain_request *request, const fd_node *node, fd_variant *variant,
                      const fd_variant *unmodified);

/* Finite elements of the candidate's rows in which `variant` is within τ and `unmodified` beyond. Zeros in a cache
 * do not count, unless it is zero in all of several rows: a row that was not written says nothing of where it went. */
int64_t fd_variant_evidence(const fd_explain_request *request, const fd_node *node, const float *output,
                            const fd_variant *variant, const fd_variant *unmodified);

#endif

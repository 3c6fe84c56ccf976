/* One node computed as a fault would have it, on the candidate's inputs. Used by compare/explain.c only. */
#ifndef FD_COMPARE_EXPLAIN_VARIANT_H
#define FD_COMPARE_EXPLAIN_VARIANT_H

#include "compare/explain.h"

typedef enum fd_variant_state {
    FD_VARIANT_UNCONCERNED, /* the fault leaves the node alone */
    FD_VARIANT_UNTRIED,     /* a tensor it reads was not recorded */
    FD_VARIANT_COMPUTED,
} fd_variant_state;

typedef struct fd_variant {
    fd_variant_state state;
    float *memory; /* owned */
    float *rows;   /* in it; laid out as fd_explain_request.output */
} fd_variant;

/* Node `node` under fault `fault` (-1: none). FD_ERR_MEMORY alone; *out is freed with fd_variant_free. */
fd_code fd_variant_compute(const fd_explain_request *request, int32_t fault, int32_t node, fd_variant *out,
                           fd_error *err);
void fd_variant_free(fd_variant *variant);

/* How the variant's rows fit `output` with `tau` (NULL: exact). Elements of over_kv rows past a row's own position are
 * not looked at. */
fd_explain_fit fd_variant_fit(const fd_op_args *args, const fd_node *node, const float *variant, const float *output,
                              const double *tau);

/* The same bits (NaN is NaN) in every element that counts. */
bool fd_variant_equal(const fd_op_args *args, const fd_node *node, const float *a, const float *b);

/* Finite elements in which `variant` is within τ of the candidate and `unmodified` beyond `factor` τ. Zeros in a cache do not
 * count: a row that nobody wrote says nothing of where it went. */
int64_t fd_variant_evidence(const fd_explain_request *request, const float *variant, const float *unmodified,
                            double factor);

#endif

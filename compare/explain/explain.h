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
#ifndef FD_COMPARE_EXPLAIN_EXPLAIN_H
#define FD_COMPARE_EXPLAIN_EXPLAIN_H

#include "compare/explain/explanation.h"

/* FD_ERR_MEMORY alone. */
fd_code fd_explain(const fd_explain_request *request, fd_explanation *out, fd_error *err);

/* Does this one hypothesis give the candidate's values (z ≤ 1), where the op as it should be does not? Says nothing of
 * rivals. */
fd_code fd_explain_fits(const fd_explain_request *request, const fd_hypothesis *h, bool *fits, fd_error *err);

#endif

/* A node as a hypothesis has it, computed on what the candidate recorded. Tensors that were not recorded in between
 * are computed on the way, with the hypothesis wherever it concerns them, so that a bug inside fused attention, an MLP or
 * a whole layer shows at the next recorded tensor. */
#ifndef FD_COMPARE_EVALUATE_EVALUATE_H
#define FD_COMPARE_EVALUATE_EVALUATE_H

#include "compare/evaluate/variant.h"
#include "compare/hypothesis/hypothesis.h"

/* One request, with the unrecorded tensors as they should be, which every hypothesis begins from. */
typedef struct fd_workbench fd_workbench;
fd_code fd_workbench_open(const fd_explain_request *request, fd_workbench **out, fd_error *err);
void fd_workbench_close(fd_workbench *bench); /* NULL is fine */

/* `bounds`: with variant.tau, where the request has a class; without them a gap costs a fourth. FD_ERR_MEMORY alone;
 * *out is freed with fd_variant_free. */
fd_code fd_evaluate(fd_workbench *bench, const fd_hypothesis *h, int32_t node, bool bounds, fd_variant *out,
                    fd_error *err);

/* Does the hypothesis change this node, or an unrecorded one that it is computed from? */
fd_code fd_evaluate_concerns(fd_workbench *bench, const fd_hypothesis *h, int32_t node, bool *yes, fd_error *err);

/* Was this tensor recorded at the request's positions? */
bool fd_evaluate_recorded(const fd_workbench *bench, int32_t node);

/* The nodes that `node` is computed through, itself last, in order of execution: n of them into `list` [n_node]. */
int32_t fd_evaluate_span(const fd_workbench *bench, int32_t node, int32_t *list);

#endif

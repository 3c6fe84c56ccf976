/* Suspects (attribute/residuals.h): within their bounds, but more is left of most of their rows than their class leaves. They are
 * findings where one of their kind is one already, or where one bug gives their values. */
#ifndef FD_COMPARE_DIAGNOSE_SUSPECTS_H
#define FD_COMPARE_DIAGNOSE_SUSPECTS_H

#include "compare/diagnose/diagnose.h"

/* `ask` without its finding. *left: the first suspect that nothing explains, with finding 0: there is none. */
fd_code fd_resolve_suspects(const fd_diagnose_options *ask, fd_attribution *of, fd_node_finding *left, fd_error *err);

/* The first suspect in order of execution; finding 0: there is none. */
fd_node_finding fd_first_suspect(const fd_graph *graph, const fd_attribution *of);

/* The roundings of another class, or of its factors. */
bool fd_is_of_class(const fd_hypothesis *h);

/* Factors of products that are rounded are what a class does: as an explanation it says nothing against the class. (One
 * tensor that is rounded is what no class does.) */
bool fd_explains_by_rounding(const fd_explanation *e);

/* One tensor is rounded, or what one op reads: another kernel's way, or a bug. */
bool fd_explains_by_one_rounding(const fd_explanation *e);

/* By rounding q, or the weights that multiply V: classes differ in that. */
bool fd_explains_by_attention_factors(const fd_graph *graph, const fd_explanation *e);

/* Its numbers are fitted to the candidate's, so many that they may be another class's roundings. */
bool fd_explains_by_fit(const fd_graph *graph, const fd_explanation *e);

#endif

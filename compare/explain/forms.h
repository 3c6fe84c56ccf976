/* What a name says beyond its fault: forms of one function, which rounding to 16 bits does not tell (GELU's), and where it does harm. */
#ifndef FD_COMPARE_EXPLAIN_FORMS_H
#define FD_COMPARE_EXPLAIN_FORMS_H

#include "compare/explain/explanation.h"
#include "compare/verdict.h"

/* Of `best`, which gives the values: is `other`, which is not clearly beyond, a form of the same function at the same nodes? */
bool fd_is_other_form(const fd_explain_fit *best, const fd_explain_fit *other);

/* Of explanation->forms: the first summary lists those that remain; of one alone it is its own. */
void fd_name_forms(fd_explanation *explanation, const fd_graph *graph);

/* A fault that would do no harm if it were in all rows says so only if it is: rows before it, judged at the finding's node, are right. */
void fd_name_harm(const fd_verdict_extent *where, fd_explanation *e);

#endif

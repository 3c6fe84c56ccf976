/* Forms of one function, which rounding to 16 bits does not tell: GELU's. They are named together. */
#ifndef FD_COMPARE_DIAGNOSE_FORMS_H
#define FD_COMPARE_DIAGNOSE_FORMS_H

#include "compare/diagnose/explanation.h"

/* Does `best` give the values, and is `other`, which is not clearly beyond, a form of the same function at the same nodes? */
bool fd_is_other_form(const fd_explain_fit *best, const fd_explain_fit *other);

/* Of explanation->forms: the first summary lists those that remain; of one alone it is its own. */
void fd_name_forms(fd_explanation *explanation, const fd_graph *graph);

#endif

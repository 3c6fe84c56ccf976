/* A name is proved on the rows of one step. Does it hold in the steps after it? */
#ifndef FD_COMPARE_DIAGNOSE_LATER_STEPS_H
#define FD_COMPARE_DIAGNOSE_LATER_STEPS_H

#include "compare/diagnose/diagnose.h"

/* The same bug, tried with other numbers, may be refuted again. */
enum { FD_MOST_REFUTED = 4 };

/* `z` [n_pos]: of ask->finding's node at each position, negative: not judged. *out: the first row that departs, of the next
 * step, of the first that decodes or of the last, which no explanation left of `e` gives; finding 0: they give them all,
 * `e` names nothing, or the node is computed through unrecorded tensors of several layers, where the steps before are part of the
 * row. */
fd_code fd_where_name_ends(const fd_diagnose_options *ask, const fd_explanation *e, const float *z, int32_t n_pos,
                           fd_node_finding *out, fd_error *err);

/* Explanations that give the same values in the finding's step: those that later steps refute go, where others stay. `z`
 * is the largest of each position of the finding's node. */
fd_code fd_refute_by_later_steps(const fd_diagnose_options *ask, const float *z, int32_t n_pos, fd_explanation *e,
                                 fd_error *err);

/* Where a later step refutes the name and has one that holds in the finding's step, too, *e is that one. */
fd_code fd_prefer_what_holds_later(const fd_diagnose_options *ask, const float *z, int32_t n_pos, fd_explanation *e,
                                   fd_error *err);

/* Other rows of a weight are read at every position: those that are right refute them, and then *e names nothing. */
void fd_refute_by_right_rows(const float *z, int32_t n_pos, fd_explanation *e);

/* A name that rests on one or two rows has to hold in the later step where most rows depart, too. Where that step has a name that
 * holds in both, *e is that one; else *e names nothing. */
fd_code fd_doubt_few_rows(const fd_diagnose_options *ask, const float *z, int32_t n_pos, fd_explanation *e,
                          fd_error *err);

/* No name after all: few rows bear it, and `first_pos` does not. */
void fd_take_name_away(int32_t first_pos, fd_explanation *e);

#endif

/* What the ops of a model make of a trace's own tensors, as a trace: every node replayed on the inputs that were recorded, where
 * they were, else on what was replayed before it. Behind a bug these values, not those of a right run, are near to an engine's:
 * each is off by its own op alone. */
#ifndef FD_COMPARE_ATTRIBUTE_OWN_VALUES_H
#define FD_COMPARE_ATTRIBUTE_OWN_VALUES_H

#include "dumpers/store/trace.h"

/* Writes the file `path`, with every node at every position of `trace`. `graph`: the model's, without faults. FD_ERR_INPUT
 * when a recorded tensor does not have the graph's shape (named). */
fd_code fd_replay_own_values(const fd_graph *graph, const fd_trace *trace, fd_op_fn op, const char *path,
                             fd_error *err);

#endif

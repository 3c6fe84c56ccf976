/* A bug of every layer may be seen in a later layer first, where it is larger, or in an earlier step. Its place is the first layer: the
 * finding of the same kind of tensor there, in the same phase (prefill or decode); findings by what is left of their rows may have an
 * odd row by chance before. */
#ifndef FD_COMPARE_DIAGNOSE_FIRST_LAYER_H
#define FD_COMPARE_DIAGNOSE_FIRST_LAYER_H

#include "compare/diagnose/diagnose.h"

/* NULL: the first finding is there. */
const fd_node_finding *fd_first_layer(const fd_graph *graph, const fd_attribution *of);

/* Makes that one of->first. `ask` and *e are about of->first as it was; *e becomes the explanation of the new one. A name has to hold
 * in both, else nothing changes; two without a name are taken for one bug. */
fd_code fd_begin_at_first_layer(const fd_diagnose_options *ask, fd_attribution *of, fd_explanation *e, fd_error *err);

#endif

/* A bug in what is left of a class that is not known. Through many layers an engine's own roundings, of int8 blocks say, leave a hundredth of the
 * logits, and no explanation gives the values; but the bug's direction stands in what is left (projection.h), with more than half of its
 * squares, and roundings have no direction of a bug's. Within a layer, where explanations give the values, it is not asked. */
#ifndef FD_COMPARE_DIAGNOSE_ALONG_NEAREST_H
#define FD_COMPARE_DIAGNOSE_ALONG_NEAREST_H

#include "compare/diagnose/diagnose.h"

/* Of explanation->nearest, of the finding that is asked about, the one along which most of what is left goes; *shown: there is one. Then it is
 * the explanation's: named, with its slope; where others of them take about as much away they are listed, and none is the name. *where: the
 * place at which it is largest. */
fd_code fd_explain_along_nearest(const fd_diagnose_options *ask, fd_explanation *explanation, fd_node_finding *where,
                                 bool *shown, fd_error *err);

/* Takes from the nearest what is no bug where the class is not known: roundings, and what is fitted to rows. */
void fd_leave_roundings_out(fd_explanation *explanation);

#endif

/* Two executors that take turns: one runs until it shows a tensor, then waits in its observer while the other runs up
 * to the same tensor; the two are compared, and both go on. Used inside compare/ only.
 *
 * There is no deadlock: a side that ends, fails or has fewer nodes passes the turn on, and no side waits once `stop` is
 * set. */
#ifndef FD_COMPARE_DIFF_RENDEZVOUS_H
#define FD_COMPARE_DIFF_RENDEZVOUS_H

#include "compare/diff/lockstep_comparator.h"

typedef struct fd_rendezvous fd_rendezvous;

/* Installs observers in both executors (of one model: the same nodes in the same order) and starts the candidate's
 * thread. All arguments are borrowed and must outlive the rendezvous. */
fd_code fd_rendezvous_open(fd_exec *ref, fd_exec *cand, fd_lockstep_comparator *comparator, fd_rendezvous **out,
                           fd_error *err);

/* Ends the thread and removes the observers. NULL is fine. */
void fd_rendezvous_close(fd_rendezvous *rendezvous);

/* One forward call of both. FD_STOP when the comparator found a divergence; an executor's failure is prefixed with its
 * label. After anything but FD_OK the rendezvous can only be closed. */
fd_code fd_rendezvous_forward(fd_rendezvous *rendezvous, const fd_batch *ref_batch, const fd_batch *cand_batch,
                              const char *ref_label, const char *cand_label, fd_error *err);

#endif

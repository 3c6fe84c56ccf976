/* What else reads an unrecorded tensor that an explanation changes: the residual stream goes to the norm and to the next
 * addition. Where that other reader is as it should be, the tensor was right, and the explanation is not. */
#ifndef FD_COMPARE_EXPLAIN_READERS_H
#define FD_COMPARE_EXPLAIN_READERS_H

#include "compare/explain/trial.h"

/* Drops contenders that fit at the finding and that another recorded reader refutes. */
fd_code fd_refute_by_readers(fd_trial *trial, fd_error *err);

/* Drops faults that exchange what two nodes have where one of these alone is so: that is another bug. */
fd_code fd_refute_half_pairs(fd_trial *trial, fd_error *err);

#endif

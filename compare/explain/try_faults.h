/* Every row of the table of faults (faults/), tried where it may sit in the span. */
#ifndef FD_COMPARE_EXPLAIN_TRY_FAULTS_H
#define FD_COMPARE_EXPLAIN_TRY_FAULTS_H

#include "compare/explain/trial.h"

/* In the whole span. */
fd_code fd_try_faults(fd_trial *trial, fd_error *err);

/* In one layer of several. */
fd_code fd_try_faults_in_layer(fd_trial *trial, int32_t layer, fd_error *err);

/* Through several layers: in each alone. Within one: at each node alone, and at all products that read one tensor. */
fd_code fd_try_faults_in_parts(fd_trial *trial, fd_error *err);

/* Through several layers: those that concern several nodes of a layer, at all nodes of each kind. */
fd_code fd_try_faults_at_kinds(fd_trial *trial, fd_error *err);

/* Norms of rows alone, or of heads, where the span has both. */
fd_code fd_try_faults_at_norms(fd_trial *trial, fd_error *err);

/* Through several layers: at each node alone; at the first layer's, at all of its kind, too (fd_trial_try). */
fd_code fd_try_faults_at_nodes(fd_trial *trial, fd_error *err);

/* In the heads that depart alone, with the numbers that may be wrong there. */
fd_code fd_try_faults_in_heads(fd_trial *trial, fd_error *err);

/* In the heads of one rank of a tensor-parallel engine, where what the heads became was not recorded. */
fd_code fd_try_faults_on_ranks(fd_trial *trial, fd_error *err);

/* Rows of a step depart from one in its midst on, and attention reads those before it, which K and V are made of, too: a table of
 * RoPE's that ends, a scaling that starts with the length. */
fd_code fd_try_faults_from_position(fd_trial *trial, fd_error *err);

#endif

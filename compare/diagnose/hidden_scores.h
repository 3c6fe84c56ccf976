/* Scores of keys that a mask hides need not be -Inf: an engine that never computes them leaves what its buffer held before. */
#ifndef FD_COMPARE_DIAGNOSE_HIDDEN_SCORES_H
#define FD_COMPARE_DIAGNOSE_HIDDEN_SCORES_H

#include "compare/diagnose/diagnose.h"

/* Of the finding's node, where it is scores: those of keys that softmax gave no weight, though they are too large for one of 0, become
 * -Inf, as they were used. rows: n positions from `first` on, [n, n_head, n_kv]. Other nodes' rows stay, and all where weights were not recorded. */
fd_code fd_hide_scores(const fd_diagnose_options *options, const fd_node *node, int32_t first, int32_t n, int32_t n_kv,
                       float *rows, fd_error *err);

#endif

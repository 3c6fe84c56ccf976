/* Cross-checking: what other nodes say of the explanations that one node leaves. */
#ifndef FD_COMPARE_EXPLAIN_CROSS_CHECK_H
#define FD_COMPARE_EXPLAIN_CROSS_CHECK_H

#include "compare/explain/trial.h"

/* A node of the finding's layer that one of them changes and the other does not; -1: none. */
fd_code fd_where_they_differ(const fd_trial *trial, const fd_hypothesis *a, const fd_hypothesis *b, int32_t *found,
                             fd_error *err);

/* Asks other recorded nodes: in the finding's layer those where the contenders predict different values; where the
 * candidate rounds also the same op in other layers, where an error that one of them explains speaks against the
 * others. */
fd_code fd_cross_check(fd_trial *trial, fd_error *err);

#endif

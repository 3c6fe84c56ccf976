/* Cross-checking: what other nodes say of the explanations that one node leaves. */
#ifndef FD_COMPARE_DIAGNOSE_CROSS_CHECK_H
#define FD_COMPARE_DIAGNOSE_CROSS_CHECK_H

#include "compare/diagnose/variant.h"

typedef struct fd_contender {
    int32_t fault;
    fd_explain_fit fit;
    fd_variant variant;
    int64_t
        evidence;  /* finite elements that it explains and the op as it should be does not, here and at other nodes */
    bool refuted;  /* by another node */
    bool in_group; /* named together with the best one */
} fd_contender;

/* What is left of the explanations while they are tried. */
typedef struct fd_trial {
    const fd_explain_request *request;
    fd_explanation *out;
    fd_variant unmodified;
    fd_contender *contenders; /* owned; not clearly beyond, best first */
    int32_t n;
    bool op_refuted; /* the op as it should be is clearly beyond, here or at another node that a fault explains */
} fd_trial;

/* A node of the finding's layer that one of the faults changes and the other does not; -1: none. */
fd_code fd_where_they_differ(const fd_trial *trial, int32_t a, int32_t b, int32_t *found, fd_error *err);

/* Asks other recorded nodes: in the finding's layer those where the contenders predict different values; where the
 * candidate rounds also the same op in other layers, where an error that one of them explains speaks against the
 * others. */
fd_code fd_cross_check(fd_trial *trial, fd_error *err);

#endif

/* Between explain.c and explain_beside.c: what is left of the explanations while they are tried. */
#ifndef FD_COMPARE_DIAGNOSE_EXPLAIN_TRIAL_H
#define FD_COMPARE_DIAGNOSE_EXPLAIN_TRIAL_H

#include "compare/diagnose/explain_variant.h"

typedef struct fd_contender {
    int32_t fault;
    fd_explain_fit fit;
    fd_variant variant;
    int64_t
        evidence;  /* finite elements that it explains and the op as it should be does not, here and at other nodes */
    bool refuted;  /* by another node */
    bool in_group; /* named together with the best one */
} fd_contender;

typedef struct fd_trial {
    const fd_explain_request *request;
    fd_explanation *out;
    fd_variant unmodified;
    fd_contender *contenders; /* owned; not clearly beyond, best first */
    int32_t n;
    bool op_refuted; /* the op as it should be is clearly beyond, here or at another node that a fault explains */
} fd_trial;

bool fd_clearly_beyond(const fd_explain_fit *fit);

/* Does fault `fault` change node `node`? */
fd_code fd_fault_concerns(const fd_graph *graph, int32_t fault, int32_t node, bool *yes, fd_error *err);

/* A node of the layer behind `after` that one of the faults changes and the other does not; -1. */
fd_code fd_where_they_differ(const fd_trial *t, int32_t a, int32_t b, int32_t after, int32_t *found, fd_error *err);

/* Asks the recorded nodes beside this one: in its layer what one contender predicts and another does not; beside rounding
 * also the same op in other layers, where an error that one of them explains speaks against the others. */
fd_code fd_ask_beside(fd_trial *t, fd_error *err);

#endif

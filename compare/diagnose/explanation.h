/* What explanations of a finding found: which bug it is, what else it may be, and where else that bug shows. */
#ifndef FD_COMPARE_DIAGNOSE_EXPLANATION_H
#define FD_COMPARE_DIAGNOSE_EXPLANATION_H

#include "faults/faults.h"

/* How well one explanation gives the candidate's values. */
typedef struct fd_explain_fit {
    const fd_fault_info *fault; /* NULL: none */
    double z;                   /* largest */
    int32_t n_row_beyond;       /* positions in which the root of the mean square of z is > 1 */
    double ulp;       /* worst element in units in the last place; +Inf where one alone is NaN or infinite */
    int64_t n_beyond; /* elements beyond τ */
} fd_explain_fit;

enum { FD_MAX_REMAINING = 8 };

typedef struct fd_explanation {
    bool named;
    fd_explain_fit remaining[FD_MAX_REMAINING]; /* named: the fault, and its equivalents after it; else all that are not
                                                   clearly beyond, best first */
    int32_t n_remaining;       /* may exceed FD_MAX_REMAINING: only the first ones are kept */
    fd_explain_fit unmodified; /* the op as it should be; fault NULL */
    fd_explain_fit runner_up;  /* the best of the others */
    int32_t n_tried;           /* faults that concern the node and were computed */
    int32_t n_without_effect;  /* of those, the ones that give the unmodified op's bits on these inputs */
    int32_t n_untried;         /* they read tensors that were not recorded */
    char reason[256];          /* why nothing is named; "" when named */
    char next[192];            /* what would tell the remaining ones apart; "" */
} fd_explanation;

enum { FD_MAX_ALSO = 6 };

/* Findings with one cause, in order of execution. */
typedef struct fd_cause {
    const fd_fault_info *fault; /* NULL: not named */
    char node[64];              /* the first of them */
    int32_t n_node;
    char layers[48]; /* "0…21", "1, 3"; "" outside the layers */
} fd_cause;

typedef struct fd_causes {
    fd_cause first;              /* the first finding's own cause; n_node counts that finding, too */
    fd_cause also[FD_MAX_ALSO]; /* other causes, by their first node */
    int32_t n_also;             /* may exceed FD_MAX_ALSO: only the first ones are kept */
} fd_causes;

#endif

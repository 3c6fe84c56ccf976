/* What explanations of a finding found: which bug it is, what else it may be, and where else that bug shows. */
#ifndef FD_COMPARE_EXPLAIN_EXPLANATION_H
#define FD_COMPARE_EXPLAIN_EXPLANATION_H

#include "compare/evaluate/request.h"

/* Fewer finite elements that only the fault explains are no evidence: NaN alone says nothing of how it came about,
 * and a few roundings may be chance. */
enum { FD_MAX_REMAINING = 8, FD_MIN_EVIDENCE = 8, FD_MAX_NEAREST = 24 };

/* Why nothing is named. */
typedef enum fd_unnamed {
    FD_NAMED,
    FD_UNNAMED_OP_FITS,         /* the op as it should be is not clearly beyond */
    FD_UNNAMED_NONE_FITS,       /* but some may be not clearly beyond */
    FD_UNNAMED_SEVERAL_FIT,     /* n_apart differ from each other and are not clearly beyond */
    FD_UNNAMED_LITTLE_EVIDENCE, /* fewer than FD_MIN_EVIDENCE elements */
    FD_UNNAMED_FEW_ROWS,        /* they explain one or two rows, and not those from first_pos on */
    FD_UNNAMED_INPUT_UNRECORDED,
    FD_UNNAMED_ROWS_UNRECORDED, /* of `node`, somewhere in first_pos … last_pos */
} fd_unnamed;

/* What would tell the remaining explanations apart. */
typedef enum fd_tells_apart {
    FD_TELLS_NOTHING,
    FD_TELLS_SECOND_POSITION,
    FD_TELLS_NODE,           /* `other`: the first two remaining differ there */
    FD_TELLS_MORE_POSITIONS, /* they differ in nothing else */
    FD_TELLS_LAYER,          /* the other tensors of `layer` */
    FD_TELLS_SPAN,           /* the nodes from `other` to `node` */
} fd_tells_apart;

/* What was tried through unrecorded tensors and came nearest, whether it explains anything or not. */
typedef struct fd_nearest {
    fd_hypothesis h;
    double left; /* of few rows, beside what the op as it should be leaves of them */
} fd_nearest;

typedef struct fd_explanation {
    bool named;
    fd_explain_fit remaining[FD_MAX_REMAINING]; /* named: the fault, and its equivalents after it; else all that are not
                                                   clearly beyond, best first */
    bool forms;                /* named: of these rounding does not tell which, all being forms of one function */
    int32_t n_remaining;       /* may exceed FD_MAX_REMAINING: only the first ones are kept */
    fd_explain_fit unmodified; /* the op as it should be */
    fd_explain_fit runner_up;  /* the best of the others */
    fd_nearest nearest[FD_MAX_NEAREST]; /* the nearest first */
    int32_t n_nearest;
    int32_t n_judged;    /* rows that were asked about */
    int32_t n_departing; /* rows that depart one after another, from the first on, of those that were asked about */
    int32_t
        rows_alone; /* named in so many rows, the departing ones alone, while others of the step are right; 0: in all */
    int32_t n_tried;          /* faults that concern the node and were computed */
    int32_t n_without_effect; /* of those, the ones that give the unmodified op's bits on these inputs */
    int32_t n_untried;        /* they read tensors that were not recorded */
    /* Named below the bounds (projection.h): how many times the bug's own error the candidate's is, its standard error, and
     * rows; 0 rows: named by the bounds. */
    double slope, slope_error;
    int32_t slope_rows;
    fd_unnamed why;
    fd_tells_apart tells_apart;
    char node[64], other[64]; /* the node asked about; as fd_tells_apart says */
    int32_t layer, first_pos, last_pos, n_apart;
} fd_explanation;

enum { FD_MAX_ALSO = 6 };

/* Findings with one cause, in order of execution. */
typedef struct fd_cause {
    char name[32]; /* "" not named */
    char summary[192];
    char node[64]; /* the first of them */
    int32_t n_node;
    char layers[48]; /* "0…21", "1, 3"; "" outside the layers */
} fd_cause;

typedef struct fd_causes {
    fd_cause first;             /* the first finding's own cause; n_node counts that finding, too */
    fd_cause also[FD_MAX_ALSO]; /* other causes, by their first node */
    int32_t n_also;             /* may exceed FD_MAX_ALSO: only the first ones are kept */
} fd_causes;

#endif

/* One class that leaves nothing of a sound engine, and what it leaves of a trace with a bug: by_bug.c asks several. */
#ifndef FD_COMPARE_CLASS_ATTEMPT_H
#define FD_COMPARE_CLASS_ATTEMPT_H

#include "compare/attribute/z_map.h"
#include "compare/diagnose/diagnose.h"

/* Positions looked at: a bug that shows later than that is found in the inferred class or not at all. */
enum { FD_ATTEMPT_POSITIONS = 64 };

/* What a tight class leaves of the trace. */
typedef struct fd_class_attempt {
    const fd_numerics_class *class_;
    fd_attribution of;     /* owned */
    fd_verdict_map map;    /* its z by position; owned; empty: of a verdict that looks at later steps itself */
    fd_node_finding first; /* what departs first; finding 0: nothing does */
    int32_t n;             /* nodes that depart */
    double left;           /* mean logarithm of their largest errors */
    bool named;            /* one bug explains them */
    bool all;              /* not only most of them */
    bool fitted;           /* by numbers or rows that were fitted: in another class a bug may say more */
    /* Not named: what leaves next to nothing beside the op as it should be; named by a guess that leaves more than that: what comes
     * next, which may leave less in another class. Of FD_GUESS_NONE: nothing does. */
    fd_explain_fit near;
    double named_left; /* named: what the name leaves of the finding */
} fd_class_attempt;

/* Judges the first positions of the trace, of three layers alone where options->sample; freed with fd_class_attempt_free. */
fd_code fd_class_attempt_judge(const fd_attribution_options *options, const fd_numerics_class *class_,
                               fd_class_attempt *out, fd_error *err);
void fd_class_attempt_free(fd_class_attempt *attempt);

/* From attempt->of: what departs first, and how much is left. */
void fd_class_attempt_measure(fd_class_attempt *attempt, const fd_graph *graph);

/* Is there one bug that explains it in this class? `table_alone`: without guesses, which are many. `fewest`: nodes that depart in the
 * tight class that leaves fewest. */
fd_code fd_class_attempt_explain(const fd_attribution_options *options, fd_class_attempt *attempt, bool table_alone,
                                 bool undecided, int32_t fewest, fd_error *err);

/* One bug alone: what it leaves of the first finding; with `fits` where it explains that, else +Inf. And does it
 * explain the others? attempt->named says so. */
fd_code fd_class_attempt_nearness(const fd_attribution_options *options, const fd_class_attempt *attempt,
                                  const fd_hypothesis *h, bool fits, double *left, fd_error *err);
fd_code fd_class_attempt_confirm(const fd_attribution_options *options, fd_class_attempt *attempt,
                                 const fd_hypothesis *h, int32_t fewest, fd_error *err);

#endif

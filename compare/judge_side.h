/* One side of a comparison, judged by replay: its class, stated or inferred, and what departs from it. */
#ifndef FD_COMPARE_JUDGE_SIDE_H
#define FD_COMPARE_JUDGE_SIDE_H

#include "compare/comparison.h"
#include "compare/infer/infer.h"

/* How a side's class is known. */
typedef struct fd_judged_class {
    fd_class_source source;
    fd_class_evidence evidence;
} fd_judged_class;

/* Of the candidate, tensors that a sound engine recorded wrongly are left out (verdict->dump), and where what departs from the class that was
 * inferred is what another class does, the verdict is that class's. *out is freed with fd_attribution_free, also after a failure. */
fd_code fd_judge_candidate(fd_comparison *c, fd_judged_class *class_, fd_attribution *out, fd_error *err);

/* The reference, by its own class. */
fd_code fd_judge_reference(fd_comparison *c, fd_judged_class *class_, fd_attribution *out, fd_error *err);

#endif

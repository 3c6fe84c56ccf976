/* Which class of numerics a trace was computed in: what it says, or, where it says nothing, what its values show. */
#ifndef FD_COMPARE_REPLAY_INFER_H
#define FD_COMPARE_REPLAY_INFER_H

#include "compare/replay/attribution.h"

/* How the candidate's class is known. */
typedef enum fd_class_source { FD_CLASS_GIVEN, FD_CLASS_RECORDED, FD_CLASS_INFERRED } fd_class_source;
const char *fd_class_source_name(fd_class_source source); /* "given", "recorded", "inferred" */

/* What the trace says its numerics are; NULL when it does not say, or nothing this build knows. */
const fd_numerics_class *fd_class_of_trace(const fd_trace *trace);

/* The strictest class that leaves hardly more of the sampled nodes beyond their bounds than the class that leaves
 * fewest: one more in 50. A gross bug is beyond in every class and so decides nothing; one that shows at a single node
 * does not pass for a coarse type. Of a trace in 16 bits, the strictest that fits and rounds its results to as few. A
 * small bug in every layer may pass: give the class where it is known. `numerics` of the options is ignored. */
fd_code fd_infer_class(const fd_attribution_options *options, const fd_numerics_class **out, fd_error *err);

#endif

/* The command worth running next, as fd_verdict.next. */
#ifndef FD_COMPARE_REPORT_NEXT_H
#define FD_COMPARE_REPORT_NEXT_H

#include "compare/verdict.h"

/* After a comparison of bits: shows the divergence, or, where its values are not recorded, records them; where no name
 * is on both sides, the check that finds out which is which. `departs` is the side that departs. */
void fd_next_of_bits(fd_verdict *verdict, const fd_trace *departs);

/* After replay: where a class was stated that the values speak against, names theirs; where the divergence is a span, says what
 * to record of it, in whatever engine departs; else shows it. Also what a dump calls it (saved_as). */
void fd_next_of_replay(fd_verdict *verdict, const fd_trace *departs);

#endif

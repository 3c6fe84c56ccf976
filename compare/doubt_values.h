/* What the candidate's values themselves show, whatever replay says of them: then the verdict is that nobody can tell, with the cure. */
#ifndef FD_COMPARE_DOUBT_VALUES_H
#define FD_COMPARE_DOUBT_VALUES_H

#include "compare/comparison.h"

/* What departs may be no more than the digits that were not printed: then nothing is found. `undecided`: the class is. */
fd_code fd_doubt_printed(fd_comparison *c, fd_attribution *of, bool undecided, fd_error *err);

/* Nothing was found: the class may have room for tensors that were rounded to 16 bits. */
fd_code fd_doubt_narrow(fd_comparison *c, const fd_attribution *of, bool inferred, fd_error *err);

/* One row alone is beyond, by little, in a class that rounds to steps and through unrecorded tensors: so much one value does that fell
 * to the other side. Then nothing is found, unless it has a name; even so where it is one value's share of a product. */
fd_code fd_doubt_one_step(fd_comparison *c, fd_attribution *of, fd_error *err);

/* What departs is what K and V in blocks give, which the trace does not say: then nothing is found. */
fd_code fd_doubt_cache_type(fd_comparison *c, fd_attribution *of, fd_error *err);

/* Is among the reasons that the engine's own way, or its cache, gives what departs at that node? "": at any. */
bool fd_is_said_own_way(const fd_verdict *verdict, const char *node);

#endif

/* What departs from the class that was inferred may be how the engine is meant to be: products, a cache or an embedding in a type of their
 * own. Then the verdict gives that as its reason, and nothing is found. */
#ifndef FD_COMPARE_DOUBT_CLASS_H
#define FD_COMPARE_DOUBT_CLASS_H

#include "compare/comparison.h"

/* of->found and of->first say what is left to report. */
fd_code fd_doubt_class(fd_comparison *c, bool inferred, fd_attribution *of, fd_error *err);

#endif
